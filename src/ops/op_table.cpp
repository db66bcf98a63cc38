#include "ops/op_table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "ops/op_descriptions.h"
#include "ops/rule_names.h"

namespace smla {

namespace {

std::string number_word(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

/// Lists the members of an op.
struct ListMembers {
  std::vector<OpMember> scalars{};
  std::vector<OpMember> tensors{};
  std::span<const TensorShape> shapes{};

  void operator()(const char* name, const std::int64_t& v) { scalar(name, MemberKind::kInteger, std::to_string(v)); }
  void operator()(const char* name, const int& v) { scalar(name, MemberKind::kInteger, std::to_string(v)); }
  void operator()(const char* name, const bool& v) { scalar(name, MemberKind::kFlag, v ? "true" : "false"); }
  void operator()(const char* name, const float& v) { scalar(name, MemberKind::kNumber, number_word(v)); }
  void operator()(const char* name, const DType& v) { scalar(name, MemberKind::kDType, std::string(name_of(v))); }
  void operator()(const char* name, const RowFormat* const& v) {
    scalar(name, MemberKind::kFormat, v == nullptr ? "" : std::string(v->name));
  }
  template <Rule Value>
  void operator()(const char* name, const Value& v) {
    scalar(name, MemberKind::kRule, std::string(rule_name(v)));
  }
  void in(const char* name, ConstTensorView& /*view*/) { tensor(name, MemberKind::kInput, false); }
  void out(const char* name, TensorView& /*view*/) { tensor(name, MemberKind::kOutput, true); }
  void cache(const char* name, PagedCache& /*cache*/, CacheAccess access) {
    tensor(name, MemberKind::kCache, access == CacheAccess::kWrite);
  }

 private:
  void scalar(const char* name, MemberKind kind, std::string fallback) {
    scalars.push_back({.name = name, .kind = kind, .fallback = std::move(fallback)});
  }
  void tensor(const char* name, MemberKind kind, bool written) {
    const auto at = std::find_if(shapes.begin(), shapes.end(), [&](const TensorShape& s) { return s.name == name; });
    tensors.push_back(
        {.name = name, .kind = kind, .written = written, .shape = at == shapes.end() ? nullptr : &*at, .fallback = {}});
  }
};

/// Makes every tensor a present one, so that access which depends on what is given is the widest.
struct GiveAll {
  static constexpr char kByte = 0;
  void in(const char* /*name*/, ConstTensorView& view) const { view = ConstTensorView(&kByte, DType::kU8, {1}); }
  void out(const char* /*name*/, TensorView& /*view*/) const {}
  void cache(const char* /*name*/, PagedCache& /*cache*/, CacheAccess /*access*/) const {}
};

template <class Op>
OpRow row_of() {
  ListMembers list{.shapes = OpDescription<Op>::kShapes};
  typename Op::Problem problem;
  typename Op::Args args;
  OpDescription<Op>::fields(problem, list);
  OpDescription<Op>::tensors(args, GiveAll{});
  OpDescription<Op>::tensors(args, list);
  OpRow row{.name = Op::kName,
            .family = OpDescription<Op>::kFamily,
            .typical = OpDescription<Op>::kTypical,
            .members = std::move(list.scalars)};
  row.members.insert(row.members.end(), std::make_move_iterator(list.tensors.begin()),
                     std::make_move_iterator(list.tensors.end()));
  return row;
}

// --- scalars from tensors ---

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(trim(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::optional<std::int64_t> integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// One way a tensor's elements may be: a dtype, with which row format, and beside which other tensor.
struct Alternative {
  DType dtype;
  std::string_view format;
  std::string_view beside;
};

/// The dtype words of a tensor.
struct DTypeWords {
  std::string_view scalar;
  std::vector<Alternative> alternatives;

  explicit DTypeWords(std::string_view text) {
    if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
      scalar = trim(text.substr(0, colon));
      text.remove_prefix(colon + 1);
    }
    constexpr std::string_view kBeside = " beside ";
    for (std::string_view word : split(text, '|')) {
      std::string_view beside;
      if (const std::size_t found = word.find(kBeside); found != std::string_view::npos) {
        beside = trim(word.substr(found + kBeside.size()));
        word = word.substr(0, found);
      }
      const std::size_t at = std::min(word.find('@'), word.size());
      const std::string_view dtype = word.substr(0, at);
      for (const DType known :
           {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3, DType::kU8, DType::kI32, DType::kI64, DType::kBool}) {
        const std::string_view name = known == DType::kE4M3 ? std::string_view("E4M3") : name_of(known);
        if (name != dtype) continue;
        alternatives.push_back({known, at < word.size() ? word.substr(at + 1) : std::string_view(), beside});
      }
      if (alternatives.empty() && scalar.empty()) scalar = word;  // a scalar alone: any dtype
    }
  }
  bool has(DType dtype) const {
    return std::any_of(alternatives.begin(), alternatives.end(), [&](const auto& a) { return a.dtype == dtype; });
  }
};

class Solver {
 public:
  Solver(const OpRow& op, std::span<const NamedScalar> given, std::span<NamedTensor> tensors)
      : op_(op), given_(given), tensors_(tensors) {}

  std::vector<NamedScalar> solve() {
    for (const NamedTensor& t : tensors_) look_at_cache(t);
    for (const NamedTensor& t : tensors_) look_at_format(t);
    for (NamedTensor& t : tensors_) look_at_dtype(t);
    look_at_flags();
    for (const NamedTensor& t : tensors_) count_list(t);
    // Plain sizes first, then what follows from them, bounds last.
    for (const NamedTensor& t : tensors_) look_at_dims(t, &Solver::plain);
    for (std::size_t before = found_.size() + 1; before != found_.size();) {
      before = found_.size();
      for (const NamedTensor& t : tensors_) look_at_dims(t, &Solver::expression);
    }
    for (const NamedTensor& t : tensors_) look_at_dims(t, &Solver::bound);
    return std::move(found_);
  }

 private:
  const TensorShape* shape_of(const NamedTensor& t) const {
    const OpMember* member = op_.tensor(t.name);
    return member == nullptr ? nullptr : member->shape;
  }

  const NamedScalar* known(std::string_view name) const {
    for (const NamedScalar& s : given_)
      if (s.name == name) return &s;
    for (const NamedScalar& s : found_)
      if (s.name == name) return &s;
    return nullptr;
  }
  std::optional<std::int64_t> known_integer(std::string_view name) const {
    if (const auto number = integer(name)) return number;
    if (name == "coff") {  // halves of a state row
      const auto ratio = known_integer("ratio");
      if (!ratio) return {};
      return *ratio == 4 ? 2 : 1;
    }
    const NamedScalar* s = known(name);
    if (s == nullptr) return {};
    const auto* value = std::get_if<std::int64_t>(&s->value);
    return value == nullptr ? std::optional<std::int64_t>() : *value;
  }
  /// Sets a scalar, if the op has one of that name that is neither given nor found.
  void set(std::string_view name, std::variant<std::int64_t, double, std::string_view> value) {
    const OpMember* member = op_.scalar(name);
    if (member != nullptr && known(name) == nullptr) found_.push_back({member->name, value});
  }

  void look_at_cache(const NamedTensor& t) {
    const TensorShape* shape = shape_of(t);
    if (shape == nullptr || t.format == nullptr) return;
    const std::vector<std::string_view> names = split(shape->dims, ',');
    if (names.size() != 2) return;
    if (shape->dtype == "cache") {
      set(names[0], t.format->name);
      set(names[1], t.block_size);
    } else {
      for (const auto& [dim, ratio] : {std::pair{512, 4}, {512, 128}, {128, 4}}) {
        if (state_rows(dim, ratio == 4 ? 2 : 1) != *t.format) continue;
        set(names[0], dim);
        set(names[1], ratio);
      }
    }
  }

  /// The format of a tensor that no other format has, or of whose dtype none is in another. Bytes that may stand for
  /// E4M3 say nothing.
  void look_at_format(const NamedTensor& t) {
    const TensorShape* shape = shape_of(t);
    if (shape == nullptr || t.format != nullptr) return;
    const DTypeWords words(shape->dtype);
    if (t.dtype == DType::kU8 && words.has(DType::kE4M3)) return;
    for (const Alternative& a : words.alternatives)
      if (!a.format.empty() && (words.alternatives.size() == 1 || a.dtype == t.dtype)) set("format", a.format);
  }

  void look_at_dtype(NamedTensor& t) {
    const TensorShape* shape = shape_of(t);
    if (shape == nullptr || t.format != nullptr) return;
    const DTypeWords words(shape->dtype);
    if (t.dtype == DType::kU8) read_bytes(t, words);
    const OpMember* scalar = op_.scalar(words.scalar);
    if (scalar == nullptr) return;
    if (scalar->kind != MemberKind::kRule) {
      set(scalar->name, name_of(t.dtype));
    } else if (t.dtype == DType::kF32 || t.dtype == DType::kI32) {  // how scales are stored
      set(scalar->name, rule_name(t.dtype == DType::kF32 ? OutputScale::kF32 : OutputScale::kUe8m0x4));
    }
  }

  bool is_given(std::string_view name) const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const NamedTensor& t) { return t.name == name; });
  }

  /// Bytes are bytes where the op takes them with this row format or beside a tensor that is given; otherwise they
  /// stand for E4M3 or for flags.
  void read_bytes(NamedTensor& t, const DTypeWords& words) {
    const NamedScalar* format = known("format");
    for (const Alternative& a : words.alternatives) {
      const bool fits = (a.format.empty() || (format != nullptr && has_word(*format, a.format))) &&
                        (a.beside.empty() || is_given(a.beside));
      if (a.dtype == DType::kU8 && fits) return;
    }
    for (const Alternative& a : words.alternatives) {
      if (a.dtype != DType::kE4M3 && a.dtype != DType::kBool) continue;
      t.dtype = a.dtype;
      if (!a.format.empty()) set("format", a.format);
    }
  }

  /// Flags say whether a tensor is given.
  void look_at_flags() {
    for (const OpMember& member : op_.members) {
      if (member.shape == nullptr || member.shape->flag.empty()) continue;
      set(member.shape->flag, std::int64_t{is_given(member.name)});
    }
  }

  /// A list counts its elements: "scopes[1].cache" makes two scopes.
  void count_list(const NamedTensor& t) {
    const std::size_t open = t.name.find('[');
    if (open == std::string_view::npos) return;
    std::int64_t most = 0;
    for (const NamedTensor& other : tensors_) {
      if (other.name.substr(0, open + 1) == t.name.substr(0, open + 1))
        most = std::max<std::int64_t>(most, other.name[open + 1] - '0' + 1);
    }
    set(t.name.substr(0, open), most);
  }

  void look_at_dims(const NamedTensor& t, void (Solver::*rule)(std::string_view, std::int64_t)) {
    const TensorShape* shape = shape_of(t);
    if (shape == nullptr || t.format != nullptr) return;
    const std::vector<std::string_view> words = split(shape->dims, ',');
    for (std::size_t i = 0; i < words.size() && i < t.shape.size(); ++i) (this->*rule)(words[i], t.shape[i]);
  }
  void plain(std::string_view word, std::int64_t size) { set(word, size); }
  void bound(std::string_view word, std::int64_t size) {
    if (word.substr(0, 3) == ">= ") plain(word.substr(3), size);
  }
  /// A product, sum or difference in which one scalar is not known.
  void expression(std::string_view word, std::int64_t size) {
    const bool is_sum = word.find(" + ") != std::string_view::npos || word.find(" - ") != std::string_view::npos;
    if (word.find(' ') != std::string_view::npos && (!is_sum || word.find(" or ") != std::string_view::npos)) return;
    for (const char sign : {'*', '+', '-'}) {
      if (word.find(sign) == std::string_view::npos) continue;
      std::string_view unknown;
      std::int64_t rest = sign == '*' ? 1 : 0;
      bool negative = false;
      bool first = true;
      for (const std::string_view part : split(word, sign)) {
        if (const auto value = known_integer(part)) {
          if (sign == '*') rest *= *value;
          if (sign == '+') rest += *value;
          if (sign == '-') rest += first ? *value : -*value;
        } else if (!unknown.empty()) {
          return;
        } else {
          unknown = part;
          negative = sign == '-' && !first;
        }
        first = false;
      }
      if (unknown.empty()) return;
      if (sign != '*') {
        plain(unknown, negative ? rest - size : size - rest);
      } else if (rest > 0 && size % rest == 0) {
        plain(unknown, size / rest);
      }
      return;
    }
  }

  static bool has_word(const NamedScalar& s, std::string_view word) {
    const auto* text = std::get_if<std::string_view>(&s.value);
    return text != nullptr && *text == word;
  }

  const OpRow& op_;
  std::span<const NamedScalar> given_;
  std::span<NamedTensor> tensors_;
  std::vector<NamedScalar> found_{};
};

}  // namespace

namespace {
const OpMember* find(const OpRow& op, std::string_view name, bool is_tensor) {
  for (const OpMember& m : op.members)
    if (m.is_tensor() == is_tensor && m.name == name) return &m;
  return nullptr;
}
}  // namespace

const OpMember* OpRow::scalar(std::string_view member) const { return find(*this, member, false); }
const OpMember* OpRow::tensor(std::string_view member) const { return find(*this, member, true); }

std::span<const OpRow> op_table() {
  static const std::vector<OpRow> kOps = [] {
    std::vector<OpRow> ops;
    for_each_op([&ops]<class Op>() { ops.push_back(row_of<Op>()); });
    return ops;
  }();
  return kOps;
}

std::vector<NamedScalar> determine_scalars(const OpRow& op, std::span<const NamedScalar> given,
                                           std::span<NamedTensor> tensors) {
  return Solver(op, given, tensors).solve();
}

}  // namespace smla
