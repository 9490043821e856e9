//go:build cuda

package transformer

import _ "contraflow/gpustage/cuda"
