"""Headroom: placeholder pods that keep room for a pool."""
