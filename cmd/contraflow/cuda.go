//go:build cuda

package main

import _ "contraflow/gpustage/cuda"
