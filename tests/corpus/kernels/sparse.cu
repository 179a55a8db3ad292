// SPDX-License-Identifier: Apache-2.0
// Gather, scatter, sparse products, graphs.
#include "device.h"

//! <<<4, 64>>> out[1000] in[800] at[1000]=index:200 250 -> idempotent: three allocations
//! <<<4, 64>>> p[2000]+1000 p+0 at[1000]=index:250 250 -> unknown-ok: source and result share an
//! allocation, the indices decide
KERNEL gather(float* out, const float* in, const int* at, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = in[at[i]];
}

//! <<<4, 64>>> out[800] in[1000] at[1000]=index:200 250 -> idempotent: three allocations; what two
//! threads write to one place is the program's own race
KERNEL scatter(float* out, const float* in, const int* at, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[at[i]] = in[i];
}

//! <<<4, 64>>> x[800] at[1000]=index:200 250 -> clobbers: elements are exchanged with others
KERNEL gather_scale_scatter(float* x, const int* at, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[at[i]] = 0.5f * x[at[i]];
}

//! <<<6, 32>>> out[3072] table[12800] ids[24]=index:25 128 -> idempotent: rows of a table
KERNEL gather_rows(float* out, const float* table, const int* ids, int width) {
  const float* row = table + ids[blockIdx.x] * width;
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    out[blockIdx.x * width + c] = row[c];
}

//! <<<2, 64>>> out[1000] in[256] at[250] 250 -> idempotent: indices of 8 bits
//! <<<2, 64>>> p[1278]+278 p+22 at[250] 250 -> idempotent: the table, in front of the result, has
//! 256 entries, and so do the indices
KERNEL look_up_bytes(unsigned char* out, const unsigned char* table, const unsigned char* at,
                     int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    out[i] = table[at[i]];
}

//! <<<2, 32>>> y[200] row[204]=rows:50:6 col[1200]=index:40 val[1200] x[160] 50 -> idempotent: a
//! thread for each row
//! <<<2, 32>>> x[200] row[204]=rows:50:6 col[1200]=index:50 val[1200] x+0 50 -> clobbers: y is x
KERNEL csr_scalar(float* y, const int* row, const int* column, const float* value, const float* x,
                  int rows) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows)
    return;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; ++k)
    sum += value[k] * x[column[k]];
  y[r] = sum;
}

//! <<<7, 64>>> y[52] row[56]=rows:13:80 col[4160]=index:40 val[4160] x[160] 13 -> idempotent: a
//! warp for each row
KERNEL csr_vector(float* __restrict__ y, const int* __restrict__ row,
                  const int* __restrict__ column, const float* __restrict__ value,
                  const float* __restrict__ x, int rows) {
  const int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (r >= rows)
    return;
  const int end = row[r + 1];
  float sum = 0;
  for (int k = row[r] + lane; k < end; k += 32)
    sum += value[k] * x[column[k]];
  sum = warp_sum(sum);
  if (lane == 0)
    y[r] = sum;
}

//! <<<4, 64>>> y[200] ri[1000]=index:50 ci[1000]=index:40 v[1000] x[160] 250 -> clobbers: sums by
//! atomics
KERNEL coo_atomic(float* y, const int* row, const int* column, const float* value, const float* x,
                  int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    atomicAdd(&y[row[i]], value[i] * x[column[i]]);
}

//! <<<2, 32>>> y[200] col[1000]=index:40 val[1000] x[160] 50 5 -> idempotent: rows of equal length
KERNEL ell(float* y, const int* column, const float* value, const float* x, int rows, int width) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows)
    return;
  float sum = 0;
  for (int k = 0; k < width; ++k) {
    const int c = column[k * rows + r];
    if (c >= 0)
      sum += value[k * rows + r] * x[c];
  }
  y[r] = sum;
}

//! <<<2, 32>>> y[200] d[600] off[12]=zero x[200] 50 3 -> idempotent: diagonals
KERNEL dia(float* y, const float* diagonals, const int* offsets, const float* x, int n, int count) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n)
    return;
  float sum = 0;
  for (int k = 0; k < count; ++k) {
    const int c = r + offsets[k];
    if (c >= 0 && c < n)
      sum += diagonals[k * n + r] * x[c];
  }
  y[r] = sum;
}

//! <<<(1, 10), 32>>> y[1280] row[44]=rows:10:6 col[240]=index:20 val[240] x[2560] 32 -> idempotent:
//! sparse by dense
KERNEL spmm(float* y, const int* row, const int* column, const float* value, const float* x,
            int width) {
  const int r = blockIdx.y, c = threadIdx.x;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; ++k)
    sum += value[k] * x[column[k] * width + c];
  y[r * width + c] = sum;
}

//! <<<2, 64>>> val[400] ri[400]=index:10 ci[400]=index:20 a[640] b[1280] 100 16 -> idempotent:
//! dense products at sparse places
KERNEL sddmm(float* value, const int* row, const int* column, const float* a, const float* b,
             int count, int k) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  float sum = 0;
  for (int j = 0; j < k; ++j)
    sum += a[row[i] * k + j] * b[column[i] * k + j];
  value[i] = sum;
}

//! <<<2, 32>>> val[1200] row[204]=rows:50:6 50 -> clobbers: values are scaled where they are
KERNEL csr_normalise_rows(float* value, const int* row, int rows) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows)
    return;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; ++k)
    sum += fabsf(value[k]);
  for (int k = row[r]; k < row[r + 1]; ++k)
    value[k] /= sum + 1.0f;
}

//! <<<1, 32>>> out[36] row[16]=rows:3:2 col[24]=index:4 val[216] x[48] 3 -> idempotent: blocks of
//! three by three
KERNEL bsr(float* y, const int* row, const int* column, const float* value, const float* x,
           int rows) {
  const int r = threadIdx.x / 3, i = threadIdx.x % 3;
  if (r >= rows)
    return;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; ++k)
    for (int j = 0; j < 3; ++j)
      sum += value[(k * 3 + i) * 3 + j] * x[column[k] * 3 + j];
  y[r * 3 + i] = sum;
}

// --- Graphs ---

//! <<<2, 32>>> dist[200]=index:4 row[204]=rows:50:6 adj[1200]=index:50 again[4]=zero 2 50 ->
//! clobbers: distances are read and set
KERNEL bfs_level(int* distance, const int* row, const int* adjacent, int* again, int level,
                 int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes || distance[v] != level)
    return;
  for (int k = row[v]; k < row[v + 1]; ++k) {
    const int w = adjacent[k];
    if (distance[w] > level + 1 || distance[w] == 0) {
      distance[w] = level + 1;
      *again = 1;
    }
  }
}

//! <<<2, 32>>> next[200] seen[50] now[50]=bytes:2 row[204]=rows:50:6 adj[1200]=index:50 50 ->
//! idempotent: reads this frontier, writes the next one; the visited set is only read
//! <<<2, 32>>> seen[200]=bytes:2 seen+0 now[50]=bytes:2 row[204]=rows:50:6 adj[1200]=index:50 50 ->
//! clobbers: the next frontier is the visited set
KERNEL bfs_mark_next(unsigned char* next, const unsigned char* seen, const unsigned char* now,
                     const int* row, const int* adjacent, int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes || now[v] == 0)
    return;
  for (int k = row[v]; k < row[v + 1]; ++k)
    if (!seen[adjacent[k]])
      next[adjacent[k]] = 1;
}

//! <<<2, 32>>> out[400] count[4]=zero seen[200]=zero in[80]=index:50 row[204]=rows:50:6
//! adj[1200]=index:50 20 -> clobbers: visited marks and the queue's end by atomics
KERNEL bfs_queue(int* out, int* count, int* visited, const int* in, const int* row,
                 const int* adjacent, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const int v = in[i];
  for (int k = row[v]; k < row[v + 1]; ++k) {
    const int w = adjacent[k];
    if (atomicExch(&visited[w], 1) == 0)
      out[atomicAdd(count, 1)] = w;
  }
}

//! <<<2, 32>>> to[200] from[200] row[204]=rows:50:6 adj[1200]=index:50 deg[200] 0.85f 50 ->
//! idempotent: ranks are pulled from the old vector
//! <<<2, 32>>> r[200] r+0 row[204]=rows:50:6 adj[1200]=index:50 deg[200] 0.85f 50 -> clobbers: the
//! new ranks replace the old ones
KERNEL page_rank(float* to, const float* from, const int* row, const int* adjacent,
                 const int* degree, float damping, int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes)
    return;
  float sum = 0;
  for (int k = row[v]; k < row[v + 1]; ++k) {
    const int u = adjacent[k];
    sum += from[u] / static_cast<float>(degree[u] | 1);
  }
  to[v] = (1.0f - damping) / nodes + damping * sum;
}

//! <<<2, 32>>> dist[200]=index:99 row[204]=rows:50:6 adj[1200]=index:50 w[1200]=index:9 50 ->
//! clobbers: an atomic minimum
KERNEL relax_edges(int* distance, const int* row, const int* adjacent, const int* weight,
                   int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes)
    return;
  for (int k = row[v]; k < row[v + 1]; ++k)
    atomicMin(&distance[adjacent[k]], distance[v] + weight[k]);
}

//! <<<2, 32>>> parent[200]=index:50 50 -> clobbers: pointer jumping, in place
KERNEL pointer_jump(int* parent, int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v < nodes)
    parent[v] = parent[parent[v]];
}

//! <<<2, 32>>> to[200] parent[200]=index:50 50 -> idempotent: pointer jumping into a second array
KERNEL pointer_jump_to(int* to, const int* parent, int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v < nodes)
    to[v] = parent[parent[v]];
}

//! <<<4, 64>>> label[200]=iota a[1000]=index:50 b[1000]=index:50 changed[4]=zero 250 -> clobbers:
//! labels of both ends are read and lowered
KERNEL hook_labels(int* label, const int* a, const int* b, int* changed, int edges) {
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= edges)
    return;
  const int la = label[a[e]], lb = label[b[e]];
  if (la != lb) {
    label[max(la, lb)] = min(la, lb);
    *changed = 1;
  }
}

//! <<<2, 32>>> count[200] row[204]=rows:50:6 adj[1200]=index:50 50 -> idempotent: triangles at each
//! node
KERNEL count_triangles(int* count, const int* row, const int* adjacent, int nodes) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes)
    return;
  int n = 0;
  for (int i = row[v]; i < row[v + 1]; ++i) {
    const int u = adjacent[i];
    for (int j = row[u]; j < row[u + 1]; ++j)
      for (int k = row[v]; k < row[v + 1]; ++k)
        n += adjacent[j] == adjacent[k];
  }
  count[v] = n;
}

//! <<<2, 32>>> colour[200]=zero row[204]=rows:50:6 adj[1200]=index:50 prio[200] 50 1 -> clobbers:
//! neighbours' colours are read while colours are set
KERNEL colour_step(int* colour, const int* row, const int* adjacent, const int* priority, int nodes,
                   int step) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes || colour[v] != 0)
    return;
  bool largest = true;
  for (int k = row[v]; k < row[v + 1]; ++k) {
    const int w = adjacent[k];
    if (w != v && (colour[w] == 0 || colour[w] == step) && priority[w] > priority[v])
      largest = false;
  }
  if (largest)
    colour[v] = step;
}
