// SPDX-License-Identifier: Apache-2.0
#include "common/example.h"

#include <cerrno>
#include <cstdlib>

namespace example {
namespace {

void usage(std::FILE* out, const char* program, const char* about,
           std::initializer_list<Option> options) {
  std::fprintf(out, "usage: %s [options]\n%s\n\n", program, about);
  for (const Option& o : options) {
    if (o.max == 0)
      std::fprintf(out, "  %-14s %s\n", o.name, o.help);
    else
      std::fprintf(out, "  %-12s N %s (%u to %u, default %u)\n", o.name, o.help, o.min, o.max,
                   *o.value);
  }
  std::fprintf(out, "  %-14s this text\n", "--help");
}

[[noreturn]] void bad_usage(const char* program, const char* what, const char* word) {
  std::fprintf(stderr, "%s: %s '%s'; see --help\n", program, what, word);
  std::exit(2);
}

}  // namespace

void parse(int argc, char** argv, const char* about, std::initializer_list<Option> options) {
  const char* program = std::strrchr(argv[0], '/');
  program = program != nullptr ? program + 1 : argv[0];
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0) {
      usage(stdout, program, about, options);
      std::exit(0);
    }
  }
  for (int i = 1; i < argc; ++i) {
    const Option* found = nullptr;
    for (const Option& o : options)
      if (std::strcmp(argv[i], o.name) == 0)
        found = &o;
    if (found == nullptr)
      bad_usage(program, "unknown argument", argv[i]);
    if (found->max == 0) {
      *found->value = 1;
      continue;
    }
    if (++i == argc)
      bad_usage(program, "a value is missing after", found->name);
    char* end = nullptr;
    errno = 0;
    const unsigned long value = std::strtoul(argv[i], &end, 10);
    if (argv[i][0] < '0' || argv[i][0] > '9' || *end != '\0' || errno != 0 || value < found->min ||
        value > found->max) {
      std::fprintf(stderr, "%s: %s takes a whole number from %u to %u, not '%s'\n", program,
                   found->name, found->min, found->max, argv[i]);
      std::exit(2);
    }
    *found->value = static_cast<unsigned>(value);
  }
}

std::uint64_t hash(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t h = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes; ++i)
    h = (h ^ p[i]) * 0x100000001b3u;
  return h;
}

}  // namespace example
