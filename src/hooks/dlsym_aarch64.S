// dlsym and dlvsym as the program meets them (aarch64). Each asks lookup.cpp and then returns the
// answer or jumps to the real function with the program's arguments and return address in place.
// Why assembly: see dlsym_x86_64.S.

.macro LOOKUP_THUNK exported, private, decide, caller_register
    .globl \exported
    .type \exported, %function
    .globl \private
    .hidden \private
    .hidden \decide
    .p2align 4
\exported:
\private:
    .cfi_startproc
    hint 34  // bti c; written as a hint so that every assembler takes it
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
    mov x29, sp
    // Argument registers of dlvsym; dlsym has the first two.
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov \caller_register, x30
    bl \decide
    mov x16, x1  // Decision: x0 = answer, x1 = jump. `br x16` may land on a `bti c`
    cbz x16, 1f
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
1:  ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 2f
    br x16
2:  ret
    .cfi_endproc
    .size \exported, . - \exported
.endm

    .text
    LOOKUP_THUNK dlsym, kvshim_thunk_dlsym, kvshim_decide_dlsym, x2
    LOOKUP_THUNK dlvsym, kvshim_thunk_dlvsym, kvshim_decide_dlvsym, x3

    .section .note.GNU-stack, "", %progbits

// Says that this object keeps to branch target identification (aarch64 feature bit 0).
    .section .note.gnu.property, "a"
    .p2align 3
    .word 4, 16, 5
    .asciz "GNU"
    .word 0xc0000000, 4, 1, 0
