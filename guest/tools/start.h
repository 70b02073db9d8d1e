/*
 * Programs linked today start by a symbol that glibc before 2.34 lacks. This start is that of 2.17:
 * it hands main, and neither constructors nor destructors, which there are none of, to the symbol
 * of then. For the file with main of a program linked with -nostartfiles; sanitizers bring a start
 * of their own.
 */
#ifndef CW_TOOLS_START_H
#define CW_TOOLS_START_H

#ifndef CW_NO_SYMVER
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5\n"
	".globl _start\n_start:\n"
	" xorl %ebp, %ebp\n movq %rdx, %r9\n popq %rsi\n movq %rsp, %rdx\n andq $-16, %rsp\n pushq %rax\n pushq %rsp\n"
	" xorl %r8d, %r8d\n xorl %ecx, %ecx\n leaq main(%rip), %rdi\n call *__libc_start_main@GOTPCREL(%rip)\n hlt\n");
#endif

#endif
