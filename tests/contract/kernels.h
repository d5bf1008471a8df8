// The device code of the tests: PTX text that the driver compiles when it is loaded, so that no
// test needs nvcc. kernels.cu says the same in CUDA C++; the text is kept to PTX 7.0 and sm_70.
// The simulated driver knows these kernels by name and by parameter list: change all together.
// Check an edit: ptxas -arch=sm_90 on the text between the ptx marks.
#pragma once

namespace contract {

inline constexpr char kKernelText[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64

.visible .entry kv_spin(.param .u64 nanoseconds)
{
  .reg .pred %p;
  .reg .b64 %now, %end;
  ld.param.u64 %end, [nanoseconds];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
SPIN:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra SPIN;
  ret;
}

.visible .entry kv_fill(.param .u64 data, .param .u64 count, .param .u32 value)
{
  .reg .pred %p;
  .reg .b32 %threads, %blocks, %block, %thread, %value;
  .reg .b64 %data, %count, %at, %step, %wide, %address;
  ld.param.u64 %data, [data];
  ld.param.u64 %count, [count];
  ld.param.u32 %value, [value];
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %at, %block, %threads;
  cvt.u64.u32 %wide, %thread;
  add.u64 %at, %at, %wide;
  mul.wide.u32 %step, %blocks, %threads;
FILL:
  setp.ge.u64 %p, %at, %count;
  @%p bra FILLED;
  shl.b64 %address, %at, 2;
  add.u64 %address, %address, %data;
  st.u32 [%address], %value;
  add.u64 %at, %at, %step;
  bra FILL;
FILLED:
  ret;
}

.visible .entry kv_add(.param .u64 data, .param .u64 count, .param .u32 value)
{
  .reg .pred %p;
  .reg .b32 %threads, %blocks, %block, %thread, %value, %word;
  .reg .b64 %data, %count, %at, %step, %wide, %address;
  ld.param.u64 %data, [data];
  ld.param.u64 %count, [count];
  ld.param.u32 %value, [value];
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %at, %block, %threads;
  cvt.u64.u32 %wide, %thread;
  add.u64 %at, %at, %wide;
  mul.wide.u32 %step, %blocks, %threads;
ADD:
  setp.ge.u64 %p, %at, %count;
  @%p bra ADDED;
  shl.b64 %address, %at, 2;
  add.u64 %address, %address, %data;
  ld.u32 %word, [%address];
  add.u32 %word, %word, %value;
  st.u32 [%address], %word;
  add.u64 %at, %at, %step;
  bra ADD;
ADDED:
  ret;
}

.visible .entry kv_copy(.param .u64 dst, .param .u64 src, .param .u64 count)
{
  .reg .pred %p;
  .reg .b32 %threads, %blocks, %block, %thread, %word;
  .reg .b64 %dst, %src, %count, %at, %step, %wide, %offset, %address;
  ld.param.u64 %dst, [dst];
  ld.param.u64 %src, [src];
  ld.param.u64 %count, [count];
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %at, %block, %threads;
  cvt.u64.u32 %wide, %thread;
  add.u64 %at, %at, %wide;
  mul.wide.u32 %step, %blocks, %threads;
COPY:
  setp.ge.u64 %p, %at, %count;
  @%p bra COPIED;
  shl.b64 %offset, %at, 2;
  add.u64 %address, %src, %offset;
  ld.u32 %word, [%address];
  add.u64 %address, %dst, %offset;
  st.u32 [%address], %word;
  add.u64 %at, %at, %step;
  bra COPY;
COPIED:
  ret;
}

.visible .entry kv_sum(.param .u64 data, .param .u64 count, .param .u64 out)
{
  .reg .pred %p;
  .reg .b32 %threads, %blocks, %block, %thread, %word;
  .reg .b64 %data, %count, %out, %at, %step, %wide, %address, %sum;
  ld.param.u64 %data, [data];
  ld.param.u64 %count, [count];
  ld.param.u64 %out, [out];
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %at, %block, %threads;
  cvt.u64.u32 %wide, %thread;
  add.u64 %at, %at, %wide;
  mul.wide.u32 %step, %blocks, %threads;
  mov.u64 %sum, 0;
SUM:
  setp.ge.u64 %p, %at, %count;
  @%p bra SUMMED;
  shl.b64 %address, %at, 2;
  add.u64 %address, %address, %data;
  ld.u32 %word, [%address];
  cvt.u64.u32 %wide, %word;
  add.u64 %sum, %sum, %wide;
  add.u64 %at, %at, %step;
  bra SUM;
SUMMED:
  red.add.u64 [%out], %sum;
  ret;
}

.visible .entry kv_flag(.param .u64 flag)
{
  .reg .pred %p;
  .reg .b32 %word;
  .reg .b64 %flag, %now, %end;
  ld.param.u64 %flag, [flag];
  mov.u64 %end, %globaltimer;
  add.u64 %end, %end, 5000000000;
WAIT:
  ld.volatile.u32 %word, [%flag];
  setp.ne.u32 %p, %word, 0;
  @%p bra SEEN;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra WAIT;
SEEN:
  ret;
}
)ptx";

}  // namespace contract
