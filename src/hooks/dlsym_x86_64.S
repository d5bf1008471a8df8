// dlsym and dlvsym as the program meets them (x86-64). Each asks lookup.cpp and then returns the
// answer or jumps to the real function with the program's arguments and return address in place.
// Assembly because glibc takes the caller of dlsym(RTLD_NEXT, ...) from the return address: a C++
// function keeps it only if the compiler happens to make a tail call (gcc -O0, -O1 and any object
// with a destructor in the frame do not), and then a library asking for the "next" function gets
// itself and recurses for ever.

// Argument registers of dlvsym; dlsym has the first two. Saving all three keeps one macro.
.macro LOOKUP_THUNK exported, private, decide, caller_register
    .globl \exported
    .type \exported, @function
    .globl \private
    .hidden \private
    .hidden \decide
    .p2align 4
\exported:
\private:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    // Three pushes and the return address: the stack is 16-byte aligned for the call.
    movq 24(%rsp), %\caller_register
    call \decide
    movq %rdx, %r11  // Decision: rax = answer, rdx = jump
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %r11, %r11
    jz 1f
    jmpq *%r11
1:  ret
    .cfi_endproc
    .size \exported, . - \exported
.endm

    .text
    LOOKUP_THUNK dlsym, kvshim_thunk_dlsym, kvshim_decide_dlsym, rdx
    LOOKUP_THUNK dlvsym, kvshim_thunk_dlvsym, kvshim_decide_dlvsym, rcx

    .section .note.GNU-stack, "", @progbits

// Says that this object keeps to indirect-branch tracking and shadow stacks (x86 feature bits 0, 1);
// the linker drops the promise for the whole library if one object does not make it.
    .section .note.gnu.property, "a"
    .p2align 3
    .long 4, 16, 5
    .asciz "GNU"
    .long 0xc0000002, 4, 3, 0
