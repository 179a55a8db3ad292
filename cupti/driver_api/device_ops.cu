// SPDX-License-Identifier: Apache-2.0
//
// Device code of device_ops.h; compiled by clang without any toolkit header. Every kernel walks
// `size` bytes at `data` in words of eight, whole ones where `data` is aligned and byte by byte
// elsewhere; the other buffers of a call are scratch memory and always aligned.

#define GLOBAL extern "C" __attribute__((global)) void
#define DEVICE static __attribute__((device)) inline

typedef unsigned char u8;
typedef unsigned long long u64;

DEVICE u64 mix(u64 seed, u64 index) {
  u64 x = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

DEVICE u64 first_index() {
  return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() +
         __nvvm_read_ptx_sreg_tid_x();
}
DEVICE u64 stride() {
  return (u64)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}
DEVICE u64 bytes_of_word(u64 word, u64 size) {
  const u64 left = size - word * 8;
  return left < 8 ? left : 8;
}
// The bytes that may be moved as one word: all eight, unless `data` is not aligned.
DEVICE bool whole_word(const u8* data, u64 count) { return count == 8 && ((u64)data & 7) == 0; }
DEVICE u8 byte_of(u64 word, u64 i) { return (u8)(word >> (8 * i)); }

// Noise over everything. `flip` makes a second noise that differs from the first in every byte.
GLOBAL gpurecover_noise(u8* data, u64 size, u64 seed, u64 flip) {
  for (u64 word = first_index(); word * 8 < size; word += stride()) {
    const u64 noise = mix(seed, word) ^ flip;
    const u64 count = bytes_of_word(word, size);
    if (whole_word(data, count)) {
      ((u64*)data)[word] = noise;
    } else {
      for (u64 i = 0; i < count; ++i) {
        data[word * 8 + i] = byte_of(noise, i);
      }
    }
  }
}

// `data` holds a second run's result over flipped noise, `first` the first run's over plain noise.
// What still holds both noises was not written: it gets its saved value back. Every other byte must
// agree; those that do not are counted.
GLOBAL gpurecover_merge(u8* data, const u8* first, const u8* saved, u64 size, u64 seed,
                        u64* differing) {
  u64 bad = 0;
  for (u64 word = first_index(); word * 8 < size; word += stride()) {
    const u64 noise = mix(seed, word);
    const u64 count = bytes_of_word(word, size);
    if (whole_word(data, count)) {
      const u64 a = ((const u64*)first)[word];
      const u64 b = ((const u64*)data)[word];
      if (a == noise && b == ~noise) {
        ((u64*)data)[word] = ((const u64*)saved)[word];
        continue;
      }
      if (a == b) {
        continue;
      }
    }
    for (u64 i = 0; i < count; ++i) {
      const u64 at = word * 8 + i;
      const u8 plain = byte_of(noise, i);
      if (first[at] == plain && data[at] == (u8)~plain) {
        data[at] = saved[at];
      } else if (first[at] != data[at]) {
        ++bad;
      }
    }
  }
  if (bad != 0) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(differing), "l"(bad) : "memory");
  }
}

// Bytes that differ from `before` get a value that is neither the old nor the new one (subset = 0),
// or a seeded half of them gets the old value back (subset = 1). Counts the bytes it changed.
GLOBAL gpurecover_damage(u8* data, const u8* before, u64 size, u64 seed, u64 subset,
                         u64* damaged) {
  u64 changed = 0;
  for (u64 word = first_index(); word * 8 < size; word += stride()) {
    const u64 count = bytes_of_word(word, size);
    if (whole_word(data, count) && ((const u64*)before)[word] == ((const u64*)data)[word]) {
      continue;
    }
    const u64 noise = mix(seed, word);
    for (u64 i = 0; i < count; ++i) {
      const u64 at = word * 8 + i;
      const u8 old = before[at];
      const u8 now = data[at];
      if (old == now) {
        continue;
      }
      if (subset != 0) {
        if ((byte_of(noise, i) & 1) == 0) {
          continue;
        }
        data[at] = old;
      } else {
        u8 value = byte_of(noise, i);
        while (value == old || value == now) {
          ++value;
        }
        data[at] = value;
      }
      ++changed;
    }
  }
  if (changed != 0) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(damaged), "l"(changed) : "memory");
  }
}

// A block for each entry of three words: from, to, bytes. Nothing overlaps.
GLOBAL gpurecover_copy_each(const u64* entries) {
  const u64* const entry = entries + 3 * (u64)__nvvm_read_ptx_sreg_ctaid_x();
  const u8* const from = (const u8*)entry[0];
  u8* const to = (u8*)entry[1];
  const u64 size = entry[2];
  const u64 threads = __nvvm_read_ptx_sreg_ntid_x();
  const u64 words = (((u64)from | (u64)to) & 7) == 0 ? size / 8 : 0;
  for (u64 i = __nvvm_read_ptx_sreg_tid_x(); i < words; i += threads) {
    ((u64*)to)[i] = ((const u64*)from)[i];
  }
  for (u64 i = words * 8 + __nvvm_read_ptx_sreg_tid_x(); i < size; i += threads) {
    to[i] = from[i];
  }
}
