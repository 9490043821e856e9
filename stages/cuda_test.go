//go:build cuda

package stages_test

import _ "contraflow/gpustage/cuda"
