"""The kube-scheduler extender: chooses nodes, claims them, and only then answers them. It never binds."""
