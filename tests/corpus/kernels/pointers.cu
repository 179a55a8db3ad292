// SPDX-License-Identifier: Apache-2.0
// Where addresses come from: tables, lists, trees, iterators, selections, arithmetic.
#include "device.h"

//! <<<3, 64>>> t[24]=pointers:a:b:c out[768] 64 a[256] b[256] c[256] -> unknown-ok: rows by
//! pointers from memory
KERNEL read_by_table(const float* const* table, float* out, int n) {
  const float* row = table[blockIdx.x];
  if (static_cast<int>(threadIdx.x) < n)
    out[blockIdx.x * n + threadIdx.x] = row[threadIdx.x];
}

//! <<<3, 64>>> t[24]=pointers:a:b:c 1.0f 64 a[256] b[256] c[256] -> unknown-ok: where it writes is
//! known to the table only
KERNEL fill_by_table(float* const* table, float value, int n) {
  if (static_cast<int>(threadIdx.x) < n)
    table[blockIdx.x][threadIdx.x] = value;
}

struct Node {
  Node* next;
  int value;
};
//! <<<1, 1>>> l[160]=list:16 out[4] -> unknown-ok: a list is walked by pointers from memory
KERNEL sum_list(const Node* head, int* out) {
  int sum = 0;
  for (const Node* n = head; n != nullptr; n = n->next)
    sum += n->value;
  *out = sum;
}

//! <<<1, 1>>> l[160]=list:16 -> clobbers: values along a list are read and written; no analysis can
//! see that it stays in one allocation, so unknown is right as well
KERNEL increment_list(Node* head) {
  for (Node* n = head; n != nullptr; n = n->next)
    n->value += 1;
}

//! <<<1, 64>>> l[640] 40 -> idempotent: links are only written
KERNEL build_list(Node* nodes, int n) {
  const int i = threadIdx.x;
  if (i < n) {
    nodes[i].next = i + 1 < n ? &nodes[i + 1] : nullptr;
    nodes[i].value = i;
  }
}

struct TreeNode {
  int key, left, right;
};
//! <<<2, 32>>> out[200] tree[120] key[200] 50 -> idempotent: a tree of indices, in an array of its
//! own
KERNEL search_tree(int* out, const TreeNode* tree, const int* key, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int at = 0, depth = 0;
  while (at < 10 && at >= 0 && depth < 8) {
    const TreeNode t = tree[at];
    at = (key[i] < t.key ? t.left : t.right) & 7;
    ++depth;
  }
  out[i] = at;
}

struct Buffers {
  float* out;
  const float* in;
};
//! <<<2, 64>>> d[16]=pointers:o:i 100 o[400] i[400] -> unknown-ok: a descriptor in device memory
KERNEL copy_by_descriptor(const Buffers* d, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    d->out[i] = d->in[i];
}

//! <<<2, 64>>> y[400] a[400] b[400] 100 0 -> idempotent: one of two inputs
//! <<<2, 64>>> a[400] a+0 b[400] 100 1 -> idempotent: of these two, b is taken, and a is written
//! <<<2, 64>>> a[400] a+0 b[400] 100 0 -> clobbers: a is taken, and written
KERNEL select_input(float* y, const float* a, const float* b, int n, int second) {
  const float* from = second ? b : a;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = from[i] + 1.0f;
}

//! <<<2, 64>>> a[400] b[400] 100 0 -> idempotent: from b to a
//! <<<2, 64>>> a[400] b[400] 100 1 -> idempotent: from a to b
//! <<<2, 64>>> p[800]+0 p+400 100 1 -> idempotent: the same in one allocation
KERNEL ping_pong_by_parity(float* a, float* b, int n, int step) {
  const float* from = step & 1 ? a : b;
  float* to = step & 1 ? b : a;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > 0 && i < n - 1)
    to[i] = 0.5f * (from[i - 1] + from[i + 1]);
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: an iterator that runs backwards
//! <<<2, 64>>> x[400] x+0 100 -> clobbers: in place
KERNEL copy_reversed(float* out, const float* in, int n) {
  const float* end = in + n;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = *(end - 1 - i);
}

//! <<<2, 32>>> out[256] in[2048] 8 -> idempotent: each thread moves a pointer along
//! <<<2, 32>>> p[2304]+0 p+256 8 -> idempotent: the sums in front of the data
KERNEL sum_by_pointer(float* out, const float* in, int each) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const float* p = in + t * each;
  const float* const end = p + each;
  float sum = 0;
  while (p != end)
    sum += *p++;
  out[t] = sum;
}

//! <<<1, 64>>> out[2560] in[2560] 10 64 -> idempotent: two pointers go down a column
KERNEL copy_columns_by_pointer(float* out, const float* in, int rows, int pitch) {
  in += threadIdx.x;
  out += threadIdx.x;
  for (int r = 0; r < rows; ++r) {
    *out = *in;
    in += pitch;
    out += pitch;
  }
}

struct StridedView {
  char* base;
  int rows, columns;
  long long row_bytes, column_bytes;
  __device__ float& at(int r, int c) const {
    return *reinterpret_cast<float*>(base + r * row_bytes + c * column_bytes);
  }
};
//! <<<(2, 2), (16, 8)>>> {o[1200] 10 30 120l 4l} {i[1200] 10 30 120l 4l} -> idempotent: strided
//! views
//! <<<(2, 2), (16, 8)>>> {o[1200] 10 30 120l 4l} {i[1200] 10 30 4l 40l} -> idempotent: a transposed
//! view
//! <<<(2, 2), (16, 8)>>> {p[2400]+120 10 30 240l 4l} {p+0 10 30 240l 4l} -> idempotent: even and
//! odd rows of one matrix
//! <<<(2, 2), (16, 8)>>> {p[2400]+4 10 30 240l 8l} {p+0 10 30 240l 8l} -> idempotent: even and odd
//! columns of one matrix
//! <<<(2, 2), (16, 8)>>> {p[1320]+120 10 30 120l 4l} {p+0 10 30 120l 4l} -> clobbers: rows move
//! down by one
KERNEL copy_view(StridedView to, StridedView from) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  const int r = blockIdx.y * blockDim.y + threadIdx.y;
  if (r < to.rows && c < to.columns)
    to.at(r, c) = from.at(r, c);
}

struct Offsets {
  unsigned in, out, tmp;
};
//! <<<2, 64>>> p[1200] {0 400 800} 100 -> idempotent: an arena and offsets into it
//! <<<2, 64>>> p[1200] {0 200 800} 100 -> clobbers: output begins in the middle of the input
KERNEL arena_step(char* arena, Offsets o, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float* in = reinterpret_cast<const float*>(arena + o.in);
  float* out = reinterpret_cast<float*>(arena + o.out);
  float* tmp = reinterpret_cast<float*>(arena + o.tmp);
  if (i < n) {
    const float v = in[i];
    tmp[i] = v * v;
    out[i] = 2.0f * v;
  }
}

//! <<<2, 64>>> a[400] b[400] 100 -> idempotent: addresses as integers and back
//! <<<2, 64>>> p[800]+400 p+0 100 -> idempotent: neighbours in one allocation
KERNEL copy_by_integers(unsigned long long to, unsigned long long from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    *reinterpret_cast<float*>(to + 4ull * i) = *reinterpret_cast<const float*>(from + 4ull * i);
}

//! <<<2, 64>>> a[416] 100 -> clobbers: aligned down, then read and rewritten
KERNEL increment_aligned(float* p, int n) {
  float* aligned = reinterpret_cast<float*>(reinterpret_cast<size_t>(p) & ~size_t{15});
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    aligned[i] += 1.0f;
}

//! <<<2, 64>>> out[404] x[416]+4 100 -> idempotent: vectors from the first aligned element on
KERNEL copy_peeled(float* out, const float* in, int n) {
  const int head = static_cast<int>((16 - (reinterpret_cast<size_t>(in) & 15)) / 4) % 4;
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < head && t < n)
    out[t] = in[t];
  const float4* vectors = reinterpret_cast<const float4*>(in + head);
  const int count = (n - head) / 4;
  for (int v = t; v < count; v += gridDim.x * blockDim.x) {
    const float4 q = vectors[v];
    out[head + 4 * v] = q.x;
    out[head + 4 * v + 1] = q.y;
    out[head + 4 * v + 2] = q.z;
    out[head + 4 * v + 3] = q.w;
  }
  const int rest = head + count * 4 + t;
  if (rest < n)
    out[rest] = in[rest];
}

struct Matrix3 {
  float* planes[3];
};
//! <<<(2, 3), 64>>> {r[400] g[400] b[400]} {x[400] y[400] z[400]} 100 -> idempotent: planes by
//! block index
//! <<<(2, 3), 64>>> {r[400] g[400] b[400]} {r+0 g+0 b+0} 100 -> clobbers: in place
KERNEL scale_planes(Matrix3 to, Matrix3 from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to.planes[blockIdx.y][i] = 2.0f * from.planes[blockIdx.y][i];
}

//! <<<2, 64>>> out[400] in[400] null 100 -> idempotent: an optional input that is not there
//! <<<2, 64>>> out[400] in[400] b[400] 100 -> idempotent: and one that is
//! <<<2, 64>>> out[400] in[400] out+0 100 -> clobbers: the optional input is the output
KERNEL add_optional(float* out, const float* in, const float* extra, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = in[i];
    if (extra != nullptr)
      v += extra[i];
    out[i] = v;
  }
}

struct RowIterator {
  float* p;
  int pitch;
  __device__ RowIterator& operator++() {
    p += pitch;
    return *this;
  }
  __device__ float& operator*() const { return *p; }
  __device__ bool operator!=(const RowIterator& o) const { return p != o.p; }
};
//! <<<1, 32>>> x[2560] y[128] 20 32 -> idempotent: a class of iterators
KERNEL sum_by_iterators(const float* x, float* y, int rows, int pitch) {
  RowIterator it{const_cast<float*>(x) + threadIdx.x, pitch};
  const RowIterator end{it.p + rows * pitch, pitch};
  float sum = 0;
  for (; it != end; ++it)
    sum += *it;
  y[threadIdx.x] = sum;
}
