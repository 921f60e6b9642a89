// The root of the module. What it requires stands in a directory for each minor version of Kubernetes, which
// `go build -modfile` reads instead of this file.
module ateplace.dev/controlplane

go 1.26.0
