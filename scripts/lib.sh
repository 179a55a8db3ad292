# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share: installing what is missing, and building. Sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

say() { printf '\n== %s\n' "$*"; }

# A package, and a file or command that shows that it is there.
readonly packages="
cmake:cmake
ninja-build:ninja
g++:g++
clang:clang
python3:python3
ccache:ccache
python3-jsonschema:/usr/lib/python3/dist-packages/jsonschema
libcli11-dev:/usr/include/CLI/CLI.hpp
libtomlplusplus-dev:/usr/include/toml++/toml.h
libgtest-dev:/usr/include/gtest/gtest.h
libgmock-dev:/usr/include/gmock/gmock.h
nlohmann-json3-dev:/usr/include/nlohmann/json.hpp
libfmt-dev:/usr/include/fmt/format.h
libzstd-dev:/usr/include/zstd.h
liblz4-dev:/usr/include/lz4.h
libxxhash-dev:/usr/include/xxhash.h
libexpected-dev:/usr/include/tl/expected.hpp
libffi-dev:/usr/lib/$(uname -m)-linux-gnu/libffi.a
libbenchmark-dev:/usr/include/benchmark/benchmark.h
"

# install_packages [EXTRA-PACKAGE:PROOF...]: what is missing, by apt-get; only said where that cannot be.
install_packages() {
  local entry missing=()
  for entry in $packages "$@"; do
    local package=${entry%%:*} proof=${entry#*:}
    if [[ $proof = /* ]]; then
      [ -e "$proof" ] || missing+=("$package")
    else
      command -v "$proof" >/dev/null || missing+=("$package")
    fi
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "missing packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "They need root. Install them and start this script again:" >&2
      echo "  sudo apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo -n)
  fi
  if ! command -v apt-get >/dev/null; then
    echo "This is no Debian or Ubuntu: install what they hold by other means." >&2
    return 1
  fi
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# The CUDA toolkit is not Debian's: it is looked for, and said where to get it.
check_toolkit() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [ -n "$folder" ] && [ -e "$folder/include/cuda.h" ]; then
      export PATH=$PATH:$folder/bin
      return 0
    fi
  done
  if command -v nvcc >/dev/null; then
    return 0
  fi
  echo "No CUDA toolkit found (looked for include/cuda.h in CUDA_HOME, CUDA_PATH, /usr/local/cuda)." >&2
  echo "Install 12.5 or newer from https://developer.nvidia.com/cuda-downloads; no GPU is needed." >&2
  return 1
}

# configure PRESET [CMAKE-OPTION...]
configure() {
  local preset=$1
  shift
  say "configuring: cmake --preset $preset $*"
  if command -v ccache >/dev/null; then
    set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"
  fi
  (cd "$root" && cmake --preset "$preset" "$@")
}

# build PRESET [CMAKE-BUILD-OPTION...]
build() {
  local preset=$1
  shift
  say "building: cmake --build --preset $preset $*"
  (cd "$root" && cmake --build --preset "$preset" "$@")
}

# targets_in BUILD FOLDER PATTERN: the build targets whose executables are put into FOLDER.
targets_in() {
  (cd "$1" && ninja -t targets all) | sed -n "s#^$2/\\($3\\): .*#\\1#p"
}
