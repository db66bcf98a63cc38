#include "arguments.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "ops/named_implementations.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

template <class Number>
bool parse(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

template <class Number>
std::string limits(Number min, Number max) {
  return max == std::numeric_limits<Number>::max() ? fmt::format("{} or more", min) : fmt::format("{} to {}", min, max);
}

/// `value` becomes the number in its shortest form, so that what parses it later reads the same number.
template <class Number>
CLI::Validator number(Number min, Number max) {
  const std::string expected = limits(min, max);
  return {[=](std::string& value) -> std::string {
            Number parsed{};
            // NaN fails both comparisons.
            if (!parse(value, parsed) || !(parsed >= min) || !(parsed <= max))
              return fmt::format("got {}, expected {}", value, expected);
            value = fmt::format("{}", parsed);
            return {};
          },
          expected};
}

std::string listed(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : (i + 1 == words.size() ? " or " : ", ")) + words[i];
  return out;
}

bool looks_like_option(const std::string& value) {
  return value.size() > 1 && value[0] == '-' && std::isdigit(static_cast<unsigned char>(value[1])) == 0 &&
         value[1] != '.';
}

/// The parser takes whatever follows an option for its value; an option there is a forgotten value.
void guard_values(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() == 0 || option->get_positional()) continue;
      option->transform(CLI::Validator(
          [](std::string& value) -> std::string {
            return looks_like_option(value) ? fmt::format("got {}, expected a value", value) : std::string();
          },
          ""));
    }
    guard_values(*command);
  }
}

void check_raw(const CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::string before = argv[i - 1];
    if (text.empty()) {
      throw InvalidArgument(i > 1 && before.starts_with("-")
                                ? before + ": got an empty value, expected one"
                                : "got an empty argument after " + before + ", expected none");
    }
    if (text.starts_with("--") && text.find('=') + 1 == text.size()) {
      throw InvalidArgument(text.substr(0, text.size() - 1) + ": got an empty value, expected one");
    }
  }
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (argc < 2) throw InvalidArgument("got no command, expected " + listed(commands));
  const std::string first = argv[1];
  if (!first.starts_with("-") && std::ranges::find(commands, first) == commands.end())
    throw InvalidArgument(fmt::format("got \"{}\", expected {}", first, listed(commands)));
}

/// The parser's own texts in this program's words.
std::string text_of(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::size_t colon = text.find(": ");
  if (error.get_name() == "ArgumentMismatch" && colon != std::string::npos) {
    const bool missing = text.ends_with("missing");
    return text.substr(0, colon) + (missing ? ": got no value, expected one" : ": got it twice, expected it once");
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && colon != std::string::npos) {
    std::istringstream words(text.substr(colon + 2));  // the last that was typed comes first
    std::string typed;
    for (std::string word; words >> word;) typed = typed.empty() ? word : word + " " + typed;
    return "got " + typed + ", which is no option or argument of this command";
  }
  return text;
}

}  // namespace

CLI::Validator whole(std::int64_t min, std::int64_t max) { return number(min, max); }
CLI::Validator real(double min, double max) { return number(min, max); }
CLI::Validator seed_number() { return number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()); }

CLI::Validator one_of(const std::vector<std::string>& words) {
  const std::string expected = listed(words);
  return {[=](std::string& value) {
            const bool known = std::ranges::find(words, value) != words.end();
            return known ? std::string() : fmt::format("got {}, expected {}", value, expected);
          },
          expected};
}

std::int64_t parse_bytes(const std::string& option, const std::string& text) {
  double value = -1;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(rest, text.data() + text.size());
  std::erase(unit, ' ');
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  double factor = unit.empty() || unit == "B" ? 1 : 0;
  double step = 1;
  for (const char letter : {'K', 'M', 'G', 'T'}) {
    step *= 1024;
    const std::string name(1, letter);
    if (unit == name || unit == name + "B" || unit == name + "IB") factor = step;
  }
  constexpr double kMax = 1e15;
  if (error != std::errc() || factor == 0 || !(value >= 0) || value * factor > kMax)
    throw InvalidArgument(option + ": got " + text + ", expected a number of bytes such as 500000000, 800M, 2G or 2GB");
  return static_cast<std::int64_t>(value * factor);
}

std::map<std::string, std::string, std::less<>> implementations_of(const std::vector<std::string>& choices,
                                                                   DeviceKind device) {
  std::map<std::string, std::string, std::less<>> out;
  for (const std::string& choice : choices) {
    const std::size_t equals = choice.find('=');
    const std::string op = equals == std::string::npos ? std::string(kEveryOp) : choice.substr(0, equals);
    const std::string name = equals == std::string::npos ? choice : choice.substr(equals + 1);
    if (op.empty() || name.empty())
      throw InvalidArgument("--impl: got " + choice + ", expected NAME or OP=NAME (see `smla info`)");
    if (const auto [known, fresh] = out.emplace(op, name); !fresh && known->second != name)
      throw InvalidArgument("--impl: got " + name + " beside " + known->second + " for the same ops, expected one");
  }
  check_named_implementations("--impl", out, device);
  return out;
}

CLI::Option* add_impl_option(CLI::App* command, std::vector<std::string>& choices) {
  return command
      ->add_option("--impl", choices,
                   "Force an implementation (see `smla info`): NAME for every op that has it, or OP=NAME")
      ->allow_extra_args(false);
}

void refuse_useless(const CLI::App& command, const char* option, bool useless, const std::string& beside,
                    const std::string& expected) {
  const CLI::Option* known = command.get_option_no_throw(option);  // commands share rules, not all options
  if (useless && known != nullptr && known->count() > 0)
    throw InvalidArgument(fmt::format("{}: got it {}, expected {}", option, beside, expected));
}

int parse_arguments(CLI::App& app, int argc, char** argv) {
  guard_values(app);
  check_raw(app, argc, argv);
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    throw InvalidArgument(text_of(e));
  }
}

}  // namespace smla
