// SPDX-License-Identifier: Apache-2.0
#include "tests/corpus/launch_table.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>

namespace gpurecover::corpus {
namespace {

struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(by, at);
    parts.emplace_back(text.substr(at, end - at));
    if (end == std::string_view::npos)
      return parts;
    at = end + 1;
  }
}
std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(' ') - first + 1);
}
std::uint64_t whole(std::string_view text) {
  std::uint64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size())
    throw Mistake("not a whole number: " + std::string(text));
  return v;
}

const char* const kFills[] = {"zero",  "ones", "iota",        "index", "index8",
                              "bytes", "rows", "permutation", "list",  "pointers"};

// name, name[bytes], name[bytes]=fill:word:…, each with +offset behind it.
Value pointer(std::string_view text, Launch& launch) {
  Value v;
  v.is_pointer = true;
  v.bytes = 8;
  if (const std::size_t plus = text.find('+'); plus != std::string_view::npos) {
    v.offset = whole(text.substr(plus + 1));
    text = text.substr(0, plus);
  }
  const std::size_t open = text.find('[');
  const std::string name(text.substr(0, open));
  auto at = std::find_if(launch.buffers.begin(), launch.buffers.end(),
                         [&](const Buffer& b) { return b.name == name; });
  if (open != std::string_view::npos) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos || at != launch.buffers.end())
      throw Mistake("buffer twice, or without ]: " + name);
    Buffer b;
    b.name = name;
    b.bytes = whole(text.substr(open + 1, close - open - 1));
    if (close + 1 < text.size()) {
      if (text[close + 1] != '=')
        throw Mistake("what is behind the buffer " + name + "?");
      b.fill = split(text.substr(close + 2), ':');
      if (std::find(std::begin(kFills), std::end(kFills), b.fill[0]) == std::end(kFills))
        throw Mistake("no such content: " + b.fill[0]);
    }
    launch.buffers.push_back(b);
    at = launch.buffers.end() - 1;
  } else if (at == launch.buffers.end()) {
    throw Mistake("no such buffer: " + name);
  }
  v.buffer = static_cast<std::size_t>(at - launch.buffers.begin());
  if (v.offset > at->bytes)
    throw Mistake("beyond the end of " + name);
  return v;
}

Value value(std::string_view text, Launch& launch) {
  Value v;
  if (text == "null") {
    v.bytes = 8;
    return v;
  }
  const char first = text[0];
  if (first != '-' && (first < '0' || first > '9'))
    return pointer(text, launch);
  const std::string number(text);
  char* end = nullptr;
  const char suffix = text.back();
  if (suffix == 'f' || suffix == 'd') {
    const double d = std::strtod(number.c_str(), &end);
    const float f = static_cast<float>(d);
    v.bytes = suffix == 'f' ? 4 : 8;
    std::memcpy(&v.number, suffix == 'f' ? static_cast<const void*>(&f) : &d, v.bytes);
  } else {
    v.number = static_cast<std::uint64_t>(std::strtoll(number.c_str(), &end, 10));
    v.bytes = suffix == 'l' ? 8 : suffix == 'h' ? 2 : suffix == 'b' ? 1 : 4;
  }
  const std::string_view rest(end);
  if (!rest.empty() &&
      (rest.size() != 1 || std::string_view("fdlhbu").find(rest[0]) == std::string_view::npos))
    throw Mistake("not a number: " + number);
  return v;
}

void dimensions(std::string_view text, std::uint32_t (&out)[3]) {
  text = trim(text);
  if (text.starts_with('('))
    text = text.substr(1, text.size() - 2);
  const auto parts = split(text, ',');
  if (parts.size() > 3)
    throw Mistake("more than three dimensions");
  for (std::size_t k = 0; k < parts.size(); ++k)
    out[k] = static_cast<std::uint32_t>(whole(trim(parts[k])));
}

Launch read_launch(std::string_view text) {
  Launch launch;
  const std::size_t arrow = text.find("->");
  const std::size_t close = text.find(">>>");
  if (arrow == std::string_view::npos || close == std::string_view::npos || close > arrow)
    throw Mistake("a launch is <<<grid, block>>> arguments -> answer: why");
  launch.text = trim(text.substr(0, arrow));
  std::string_view answer = trim(text.substr(arrow + 2));
  const std::size_t colon = answer.find(':');
  if (colon == std::string_view::npos)
    throw Mistake("no reason given");
  launch.why = trim(answer.substr(colon + 1));
  answer = answer.substr(0, colon);
  if (answer == "idempotent")
    launch.answer = Answer::kIdempotent;
  else if (answer == "clobbers")
    launch.answer = Answer::kClobbers;
  else if (answer != "unknown-ok")
    throw Mistake("no such answer: " + std::string(answer));
  // Dimensions, separated by commas outside parentheses.
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text.substr(3, close - 3)) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (parts.size() < 2 || parts.size() > 3)
    throw Mistake("grid, block and perhaps shared memory");
  dimensions(parts[0], launch.grid);
  dimensions(parts[1], launch.block);
  if (parts.size() == 3)
    launch.shared_bytes = static_cast<std::uint32_t>(whole(trim(parts[2])));
  bool inside = false;
  std::string word;
  auto flush = [&] {
    if (word.empty())
      return;
    if (!inside)
      launch.arguments.emplace_back();
    launch.arguments.back().push_back(value(word, launch));
    word.clear();
  };
  for (const char c : text.substr(close + 3, arrow - close - 3)) {
    if (c == '{') {
      launch.arguments.emplace_back();
      inside = true;
    } else if (c == '}') {
      flush();
      inside = false;
    } else if (c == ' ') {
      flush();
    } else {
      word += c;
    }
  }
  flush();
  return launch;
}

}  // namespace

std::string_view name_of(Answer answer) {
  return answer == Answer::kIdempotent ? "idempotent"
         : answer == Answer::kClobbers ? "clobbers"
                                       : "unknown-ok";
}

std::vector<Kernel> read_source(const std::string& path, std::vector<std::string>& mistakes) {
  std::vector<Kernel> kernels;
  std::ifstream in(path);
  const std::string file = std::filesystem::path(path).stem();
  if (!in)
    mistakes.push_back(path + ": cannot be read");
  std::vector<std::pair<unsigned, std::string>> notes;  // a launch or a word about the kernel
  std::string text;
  for (unsigned line = 1; std::getline(in, text); ++line) {
    auto mistake = [&](unsigned where, const std::string& what) {
      mistakes.push_back(file + ".cu:" + std::to_string(where) + ": " + what);
    };
    if (text.starts_with("//! ")) {
      const std::string_view rest = trim(std::string_view(text).substr(4));
      if (rest.starts_with("<<<") || rest.starts_with('@'))
        notes.emplace_back(line, rest);
      else if (notes.empty())
        mistake(line, "continues nothing");
      else
        notes.back().second += " " + std::string(rest);
      continue;
    }
    const bool kernel = text.starts_with("KERNEL "), instance = text.starts_with("template __gl");
    if (!kernel && !instance) {
      if (!notes.empty())
        mistake(line, "no kernel behind these launches");
      notes.clear();
      continue;
    }
    Kernel k;
    k.file = file;
    k.line = line;
    if (kernel)
      k.name = text.substr(7, text.find('(') - 7);
    for (const auto& [where, note] : notes) {
      const std::size_t space = note.find(' ');
      const std::string word = note.substr(0, space);
      const std::string rest = space == std::string::npos ? "" : note.substr(space + 1);
      try {
        if (word == "@name") {
          k.name = rest;
        } else if (word == "@only") {
          k.only = rest;
        } else if (word == "@from") {
          k.from_sm = static_cast<std::uint32_t>(whole(rest));
        } else if (word == "@cooperative") {
          k.cooperative = true;
        } else if (word == "@waits") {
          k.waits = true;
        } else if (word == "@not-run") {
          k.not_run = rest;
        } else if (word[0] == '@') {
          throw Mistake("no such word: " + word);
        } else {
          Launch launch = read_launch(note);
          launch.line = where;
          k.launches.push_back(std::move(launch));
        }
      } catch (const Mistake& m) {
        mistake(where, m.what());
      }
    }
    notes.clear();
    if (k.launches.empty() || k.name.empty())
      mistake(line, "a kernel without launches or without a name");
    kernels.push_back(std::move(k));
  }
  return kernels;
}

std::string pack(const Launch& launch, std::span<const Slot> parameters,
                 std::span<const std::uint64_t> addresses, std::vector<std::byte>& block) {
  if (launch.arguments.size() < parameters.size())
    return "the kernel has " + std::to_string(parameters.size()) + " parameters";
  std::uint32_t size = 0;
  for (const Slot& p : parameters)
    size = std::max(size, p.offset + p.bytes);
  block.assign(size, std::byte{0});
  for (std::size_t k = 0; k < launch.arguments.size(); ++k) {
    const Argument& a = launch.arguments[k];
    if (k >= parameters.size()) {
      if (a.size() != 1 || !a[0].is_pointer)
        return "more arguments than parameters";
      continue;
    }
    std::uint32_t at = 0, align = 1;
    for (const Value& v : a) {
      at = (at + v.bytes - 1) / v.bytes * v.bytes;
      align = std::max(align, v.bytes);
      if (at + v.bytes > parameters[k].bytes)
        return "argument " + std::to_string(k) + " is larger than its parameter";
      const std::uint64_t word = v.is_pointer ? addresses[v.buffer] + v.offset : v.number;
      std::memcpy(block.data() + parameters[k].offset + at, &word, v.bytes);
      at += v.bytes;
    }
    if ((at + align - 1) / align * align != parameters[k].bytes)
      return "argument " + std::to_string(k) + " is smaller than its parameter";
  }
  return "";
}

void fill(const Launch& launch, std::size_t buffer, std::span<const std::uint64_t> addresses,
          std::mt19937& random, std::span<std::byte> bytes) {
  const Buffer& b = launch.buffers[buffer];
  const std::string kind = b.fill.empty() ? "" : b.fill[0];
  auto word = [&](std::size_t k) { return static_cast<std::uint32_t>(whole(b.fill.at(k))); };
  auto each = [&]<class T>(T, auto&& value) {
    for (std::size_t k = 0; (k + 1) * sizeof(T) <= bytes.size(); ++k) {
      const T v = static_cast<T>(value(k));
      std::memcpy(bytes.data() + k * sizeof(T), &v, sizeof(T));
    }
  };
  const std::uint32_t w = 0;
  if (kind == "zero") {
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  } else if (kind == "ones") {
    each(w, [](std::size_t) { return 1; });
  } else if (kind == "iota") {
    each(w, [](std::size_t k) { return k; });
  } else if (kind == "index") {
    each(w, [&, n = word(1)](std::size_t) { return random() % n; });
  } else if (kind == "index8") {
    each(std::uint64_t{0}, [&, n = word(1)](std::size_t) { return random() % n; });
  } else if (kind == "bytes") {
    each(std::uint8_t{0}, [&, n = word(1)](std::size_t) { return random() % n; });
  } else if (kind == "rows") {
    std::uint32_t sum = 0;
    each(w,
         [&, most = word(2)](std::size_t k) { return k == 0 ? 0 : sum += random() % (most + 1); });
  } else if (kind == "permutation") {
    std::vector<std::uint32_t> order(word(1));
    std::iota(order.begin(), order.end(), 0u);
    for (std::size_t k = order.size(); k > 1; --k)
      std::swap(order[k - 1], order[random() % k]);
    each(w, [&](std::size_t k) { return order[k % order.size()]; });
  } else if (kind == "list") {
    const std::size_t node = word(1), count = bytes.size() / node;
    each(w, [&](std::size_t) { return random() % 100; });
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint64_t next = k + 1 < count ? addresses[buffer] + (k + 1) * node : 0;
      std::memcpy(bytes.data() + k * node, &next, 8);
    }
  } else if (kind == "pointers") {
    each(std::uint64_t{0}, [&](std::size_t k) {
      const std::string& name = b.fill[1 + k % (b.fill.size() - 1)];
      for (std::size_t other = 0; other < launch.buffers.size(); ++other)
        if (launch.buffers[other].name == name)
          return addresses[other];
      throw Mistake("no buffer " + name + " to point to");
    });
  } else {
    each(0.0f,
         [&](std::size_t) { return static_cast<float>(random() % 20'000) / 10'000.0f - 1.0f; });
    for (std::size_t k = bytes.size() / 4 * 4; k < bytes.size(); ++k)
      bytes[k] = static_cast<std::byte>(random());
  }
}

}  // namespace gpurecover::corpus
