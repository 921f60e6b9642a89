//go:build tools

// Package main also pins the load generator.
package main

import _ "fortio.org/fortio"
