"""The one package that talks to Kubernetes.

credentials the API server's address and our credentials, read once
access      the same, kept current while tokens and certificates rotate
paths       every path we ask for; names become escaped segments
selectors   every selector with a name in it
transport   one request over pooled connections
client      `Kube`: get, list, patch, create, replace, delete, stream
backoff     how long to wait before trying again
failures    one function maps an answer that is no success to `ateplace.errors`
objects     the fields of Kubernetes objects that we read
codec       bytes to structs and back: objects, pages, watch events
store       what a watch knows, without I/O
watch       keeps a store up to date
"""

from ateplace.kube.client import Kube

__all__ = ["Kube"]
