"""The one package that talks to Kubernetes.

access    where the API server is and who we are; re-read as tokens and certificates rotate
paths     every path we ask for; names become escaped segments
transport one request over pooled connections
client    `Kube`: get, list, patch, create, replace, delete, stream
failures  one function maps an answer that is no success to `ateplace.errors`
objects   the fields of Kubernetes objects that we read
codec     bytes to structs and back: objects, pages, watch events
store     what a watch knows, without I/O
watch     keeps a store up to date
"""

from ateplace.kube.client import Kube

__all__ = ["Kube"]
