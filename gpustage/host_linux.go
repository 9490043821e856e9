package gpustage

import "golang.org/x/sys/unix"

// adviseHuge asks for 2 MiB pages: packing and streaming touch far more 4 KiB pages than a TLB holds. A refusal does not matter.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
