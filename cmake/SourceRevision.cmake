# Writes OUT, a C++ header with the hash of all sources below FOLDERS (separated by |), whatever they
# are called and wherever they lie.
string(REPLACE "|" ";" folders "${FOLDERS}")
set(hashes "")
foreach(folder IN LISTS folders)
  file(GLOB_RECURSE sources RELATIVE ${folder} ${folder}/*.h ${folder}/*.cpp)
  list(SORT sources)
  foreach(source IN LISTS sources)
    file(SHA256 ${folder}/${source} hash)
    string(APPEND hashes "${source} ${hash}\n")
  endforeach()
endforeach()
string(SHA256 revision "${hashes}")
string(SUBSTRING ${revision} 0 32 revision)
file(WRITE ${OUT} "#pragma once
namespace gpurecover::idempotency {
inline constexpr char kAnalysisRevision[] = \"${revision}\";
}  // namespace gpurecover::idempotency
")
