#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sparsemla/device.h"

namespace smla {

/// Checks of one option's value. Each refuses with "got X, expected ..."; help shows the same words.
/// Numbers are decimal, finite and within their limits, which are inclusive.
CLI::Validator whole(std::int64_t min, std::int64_t max = INT64_MAX);
CLI::Validator real(double min, double max);
CLI::Validator seed_number();  ///< any 64-bit number of 0 or more
CLI::Validator one_of(const std::vector<std::string>& words);

/// A number of bytes: "500000000", "800M", "2G", "2GB", "2 GiB", "1.5t". Units count in steps of 1024.
/// @throws InvalidArgument naming the option.
std::int64_t parse_bytes(const std::string& option, const std::string& text);

/// What --impl means: implementation names by op, "*" for every op that has it.
/// @throws InvalidArgument for a choice that names no op or no implementation on `device`.
std::map<std::string, std::string, std::less<>> implementations_of(const std::vector<std::string>& choices,
                                                                   DeviceKind device);

/// The option list of --impl, the same in every command that has it.
CLI::Option* add_impl_option(CLI::App* command, std::vector<std::string>& choices);

/// @throws InvalidArgument "<option>: got it <beside>, expected <expected>" when `option` was typed and `useless`.
void refuse_useless(const CLI::App& command, const char* option, bool useless, const std::string& beside,
                    const std::string& expected);

/// Parses the program's arguments strictly: no empty value, no option in the place of a value, known commands only.
/// @return the exit status of --help and --version, or -1 when a command ran.
/// @throws InvalidArgument with the text of what is wrong.
int parse_arguments(CLI::App& app, int argc, char** argv);

}  // namespace smla
