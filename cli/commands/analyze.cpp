// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "classifier/kernel_name.h"
#include "cli/commands/commands.h"
#include "cli/exit_codes.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/report/file.h"
#include "cli/version.h"
#include "idempotency/offline/analyse.h"
#include "image/image.h"

namespace gpurecover::cli {
namespace {

// Libraries of frameworks have some GiB.
constexpr std::uint64_t kMaxFile = 8ull << 30;

std::string reason() {
  return std::strerror(errno);
}

tl::expected<std::vector<std::byte>, std::string> read_binary(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return failure(reason());
  }
  struct stat status {};
  std::string problem;
  std::vector<std::byte> bytes;
  if (::fstat(fd, &status) != 0) {
    problem = reason();
  } else if (S_ISDIR(status.st_mode)) {
    problem = "is a folder; name the executables and libraries in it";
  } else if (!S_ISREG(status.st_mode)) {
    problem = "is no regular file; store its content in one";
  } else if (static_cast<std::uint64_t>(status.st_size) > kMaxFile) {
    problem = "larger than 8 GiB";
  } else {
    bytes.resize(static_cast<std::size_t>(status.st_size));
    std::size_t done = 0;
    while (done < bytes.size() && problem.empty()) {
      const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n == 0) {
        problem = "became shorter while it was read; try again";
      } else if (errno != EINTR) {
        problem = reason();
      }
    }
  }
  ::close(fd);
  if (!problem.empty()) {
    return failure(problem);
  }
  return bytes;
}

// The file that the loader would map: where links lead. The agent looks beside that one.
std::string real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return out;
}

std::string name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

class Analysis {
 public:
  explicit Analysis(const Invocation& invocation)
      : json_(invocation.has("--json") || invocation.value("--format", "text") == "json"),
        store_(!invocation.has("--no-store")),
        quiet_(invocation.has("--quiet")),
        folder_(invocation.value("--output-dir")) {}

  int run(const std::vector<std::string>& paths) {
    if (!folder_.empty()) {
      std::map<std::string, std::string> names;
      for (const std::string& path : paths) {
        const auto [at, added] = names.emplace(name_of(real_path(path)), path);
        if (!added && real_path(at->second) != real_path(path)) {
          return fail(at->second + " and " + path + " would have one side file, " + folder_ + "/" +
                      at->first + std::string(idempotency::kSideFileSuffix) +
                      "; analyse them into different folders");
        }
      }
      std::error_code error;
      std::filesystem::create_directories(folder_, error);
      if (error) {
        return fail("-o " + folder_ + ": " + error.message());
      }
    }
    std::string all;
    for (const std::string& path : paths) {
      one(path, all);
    }
    if (json_ && !quiet_) {
      all = "{\n\"schema\": \"gpurecover.analyze/1\",\n\"files\": [" + all + "]\n}\n";
    }
    if (!all.empty() && !print(all)) {
      return kOurError;
    }
    return good_ ? kOk : kOurError;
  }

 private:
  void problem(const std::string& text) {
    output_.error(text);
    good_ = false;
  }

  void one(const std::string& path, std::string& all) {
    const auto bytes = read_binary(path);
    if (!bytes) {
      return problem(path + ": " + bytes.error());
    }
    const auto images = image::find_images(*bytes);
    if (!images) {
      return problem(path + ": " + images.error().message());
    }
    // What can be read is still worth while.
    for (const image::Error& error : images->errors) {
      problem(path + ": " + error.message());
    }
    if (images->images.empty()) {
      if (images->errors.empty()) {
        problem(path +
                ": no kernels in it; name the file that they are compiled into, which may be a "
                "library of the program (a script or a launcher has none)");
      }
      return;
    }
    const std::string real = real_path(path);
    idempotency::AnalysedFile file = idempotency::analyse(name_of(real), *images);
    for (const idempotency::AnalysedImage& image : file.images) {
      if (image.kernels.empty() && image.note.find("not understood") != std::string::npos) {
        problem(path + ": byte " + std::to_string(image.offset) + ": " + image.note +
                "; build the file anew, or with a supported toolkit (docs/idempotency.md)");
      }
    }
    const std::string tool = "gpurecover " + std::string(version());
    if (!quiet_) {
      render(file, tool, all);
    }
    if (store_) {
      store(real, file, tool);
    }
  }

  void render(const idempotency::AnalysedFile& file, const std::string& tool, std::string& all) {
    if (json_) {
      std::string text = to_json(file, tool, idempotency::Detail::kReadable);
      text.pop_back();
      all += (all.empty() ? "\n" : ",\n") + text;
      return;
    }
    all += to_text(file, [](const std::string& symbol) {
      const std::string name = classifier::kernel_base_name(symbol);
      return name == symbol ? name : name + " (" + symbol + ")";
    });
  }

  void store(const std::string& real, const idempotency::AnalysedFile& file,
             const std::string& tool) {
    const std::string target = (folder_.empty() ? real : folder_ + "/" + name_of(real)) +
                               std::string(idempotency::kSideFileSuffix);
    const auto place = ReportFile::prepare(target);
    const auto written = place
                             ? place->write(to_json(file, tool, idempotency::Detail::kComplete))
                             : tl::expected<void, std::string>(tl::make_unexpected(place.error()));
    if (!written) {
      return problem(written.error() +
                     "; use -o DIR and `gpurecover run --analysis-dir DIR`, or "
                     "--no-store");
    }
    if (!quiet_) {
      output_.info("stored " + target);
    }
  }

  const bool json_, store_, quiet_;
  const std::string folder_;
  Output output_;
  bool good_ = true;
};

int run(const Invocation& invocation) {
  if (invocation.has("--no-store") && invocation.has("--output-dir")) {
    return fail("--no-store and -o exclude each other");
  }
  if (invocation.has("--quiet") &&
      (invocation.has("--no-store") || invocation.has("--json") || invocation.has("--format"))) {
    return fail("-q only stores: leave out --no-store, --json and --format");
  }
  return Analysis(invocation).run(invocation.operands);
}

}  // namespace

Verb analyze_verb() {
  Verb verb{.name = "analyze",
            .help = help::analyze,
            .operand = "FILE",
            .min_operands = 1,
            .max_operands = 4096,
            .run = run};
  verb.options = {{.names = {"--format"},
                   .kind = Kind::kChoice,
                   .metavar = "FORMAT",
                   .choices = {"text", "json"}},
                  {.names = {"--json"}, .kind = Kind::kFlag},
                  {.names = {"-o", "--output-dir"}, .metavar = "DIR"},
                  {.names = {"--no-store"}, .kind = Kind::kFlag},
                  {.names = {"-q", "--quiet"}, .kind = Kind::kFlag}};
  return verb;
}

}  // namespace gpurecover::cli
