#include "textflag.h"

// int clock_gettime(clockid_t clock DI, struct timespec *t SI), for callers in C
TEXT shifted<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVL $228, AX // the number of the system call clock_gettime, which preserves DI and SI
	SYSCALL
	CMPL DI, $1 // CLOCK_MONOTONIC; below is CLOCK_REALTIME
	JHI  done
	MOVQ ·ahead(SB), CX
	MOVL DI, DI
	MOVQ (CX)(DI*8), CX
	ADDQ CX, 0(SI)

done:
	RET

// func shiftedClock() uintptr
TEXT ·shiftedClock(SB), NOSPLIT, $0-8
	LEAQ shifted<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET
