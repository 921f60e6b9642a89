"""The one package that talks to Kubernetes.

access    where the API server is and who we are; re-read as tokens and certificates rotate
client    `Kube`: get, list, patch, create, replace, delete, stream
failures  one function maps an answer that is no success to `ateplace.errors`
wire      bytes to structs and back: objects, pages, watch events
"""

from ateplace.kube.client import Kube

__all__ = ["Kube"]
