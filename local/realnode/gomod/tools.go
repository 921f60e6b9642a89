//go:build tools

// Package tools pins, through go.mod and go.sum, what a real node runs its containers with.
// Nothing imports it; `go mod tidy` reads it.
package tools

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
