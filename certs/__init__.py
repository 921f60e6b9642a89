"""Certificates that renew themselves: made, judged, stored, served and replaced."""
