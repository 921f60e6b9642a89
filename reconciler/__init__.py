"""The reconciler: one leader releases claims, lets pools go, and keeps headroom and certificates."""
