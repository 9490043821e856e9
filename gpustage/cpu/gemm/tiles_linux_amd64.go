package gemm

import (
	"sync"
	"syscall"
)

// mayUseTiles asks Linux for the use of AMX's tiles, whose state is too large for it to save without being told: see
// Documentation/arch/x86/xstate.rst. It is granted to the whole process, for good: from then on no thread can have a stack for
// signals that is too small for the tiles, as Go's are not. Where a thread of some library has one, it is refused.
var mayUseTiles = sync.OnceValue(func() bool {
	const (
		requestPermission = 0x1023 // ARCH_REQ_XCOMP_PERM
		tileData          = 18     // XFEATURE_XTILEDATA
	)
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno == 0
})
