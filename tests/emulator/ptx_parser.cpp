// PTX text to instructions: declarations, scopes, labels, registers, operands. What an instruction does is decided in
// instructions.cpp.
#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>

#include "ptx.h"

namespace emulator {

int size_of(Type type) {
  switch (type) {
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
    case Type::kE4M3: return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBF16:
    case Type::kE4M3x2: return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64: return 8;
    default: return 4;
  }
}

namespace {

/// What a name stands for.
struct Symbol {
  enum Kind { kRegister, kShared, kDynamicShared, kLocal, kParameter, kAddress } kind = kRegister;
  Operand operand;  ///< of a register
  bool predicate = false;
  std::int64_t value = 0;  ///< an offset, or an address
};

struct Scope {
  int parent = -1;
  std::map<std::string, Symbol, std::less<>> symbols;
  std::map<std::string, std::uint32_t, std::less<>> labels;
};

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front())) != 0) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back())) != 0) s.remove_suffix(1);
  return s;
}

/// Text between separators, those within brackets left alone.
std::vector<std::string> pieces(std::string_view text, char separator) {
  std::vector<std::string> all;
  int depth = 0;
  std::string piece;
  for (const char c : text) {
    depth += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
    if (c == separator && depth == 0) {
      all.emplace_back(trimmed(piece));
      piece.clear();
    } else {
      piece += c;
    }
  }
  if (!trimmed(piece).empty()) all.emplace_back(trimmed(piece));
  return all;
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

std::int64_t integer(std::string_view s) {
  const bool negative = !s.empty() && s.front() == '-';
  if (negative) s.remove_prefix(1);
  int base = 10;
  if (s.starts_with("0x") || s.starts_with("0X")) base = 16, s.remove_prefix(2);
  while (!s.empty() && (s.back() == 'U' || s.back() == 'u')) s.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (status != std::errc() || end != s.data() + s.size()) throw Error("number " + std::string(s));
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

/// The bits of a number as text: 0f3F800000, 0d..., 17, -1, 0x80.
std::uint64_t bits_of(std::string_view s) {
  if (s.starts_with("0f") || s.starts_with("0F") || s.starts_with("0d") || s.starts_with("0D"))
    return static_cast<std::uint64_t>(integer("0x" + std::string(s.substr(2))));
  return static_cast<std::uint64_t>(integer(s));
}

struct Declaration {
  std::string space;
  std::string name;
  std::size_t bytes = 0;
  std::size_t align = 1;
  bool dynamic = false;  ///< [] of unknown size
  std::string values;
};

/// `.global .align 16 .b8 name[1040] = {...}` and the like.
Declaration declaration(std::string_view text) {
  Declaration d;
  std::size_t element = 1;
  const std::size_t equals = text.find('=');
  if (equals != std::string_view::npos) {
    d.values = trimmed(text.substr(equals + 1));
    text = text.substr(0, equals);
  }
  std::vector<std::string> words = pieces(std::string(text), ' ');
  std::vector<std::string> split;
  for (const std::string& word : words)
    for (const std::string& part : pieces(word, '\t')) split.push_back(part);
  for (std::size_t i = 0; i < split.size(); ++i) {
    const std::string& w = split[i];
    if (w == ".align") {
      d.align = static_cast<std::size_t>(integer(split.at(++i)));
    } else if (w == ".global" || w == ".const" || w == ".shared" || w == ".local" || w == ".param") {
      d.space = w;
    } else if (w.size() >= 3 && w[0] == '.' && std::isdigit(static_cast<unsigned char>(w.back())) != 0 &&
               std::string_view("bufs").find(w[1]) != std::string_view::npos) {
      element = static_cast<std::size_t>(integer(w.substr(2))) / 8;
      d.align = std::max(d.align, element);
    } else if (w[0] != '.') {
      d.name = w;
    }
  }
  d.bytes = element;
  if (const std::size_t bracket = d.name.find('['); bracket != std::string::npos) {
    const std::string count = d.name.substr(bracket + 1, d.name.find(']') - bracket - 1);
    d.dynamic = count.empty();
    d.bytes = d.dynamic ? 0 : element * static_cast<std::size_t>(integer(count));
    d.name.resize(bracket);
  }
  return d;
}

std::size_t rounded(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(without_comments(text)) {}

  Module parse() {
    while (skip_space(), at_ < text_.size()) statement_of_module();
    return std::move(module_);
  }

  /// Of the text, that of the next statement.
  std::uint32_t line() {
    for (; counted_ < at_; ++counted_) line_ += text_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

 private:
  static std::string without_comments(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text.substr(i, 2) == "//") {
        while (i < text.size() && text[i] != '\n') ++i;
        out += '\n';
      } else if (text.substr(i, 2) == "/*") {
        const std::size_t end = text.find("*/", i);
        out.append(static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                                       text.begin() + static_cast<std::ptrdiff_t>(end), '\n')),
                   '\n');
        i = end + 1;
      } else {
        out += text[i];
      }
    }
    return out;
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  std::string_view until(char c) {
    const std::size_t end = text_.find(c, at_);
    if (end == std::string::npos) throw Error(std::string("expected ") + c);
    const std::string_view piece = std::string_view(text_).substr(at_, end - at_);
    at_ = end + 1;
    return piece;
  }
  std::string word() {
    skip_space();
    std::size_t end = at_;
    while (end < text_.size() && (is_name(text_[end]) || text_[end] == '.')) ++end;
    std::string w = text_.substr(at_, end - at_);
    at_ = end;
    return w;
  }

  void statement_of_module() {
    const std::size_t begin = at_;
    std::string w = word();
    while (w == ".visible" || w == ".weak" || w == ".extern") w = word();
    if (w == ".version" || w == ".target" || w == ".address_size") {
      until('\n');
    } else if (w == ".entry") {
      kernel();
    } else if (w == ".global" || w == ".const" || w == ".shared") {
      at_ = begin;
      std::string_view text = until(';');
      for (const std::string_view prefix : {".visible", ".weak", ".extern"})
        if (trimmed(text).starts_with(prefix)) text = trimmed(text).substr(prefix.size());
      variable(declaration(text));
    } else {
      throw Error("unknown declaration " + w);
    }
  }

  void variable(const Declaration& d) {
    Symbol s;
    if (d.space == ".shared") {
      // Shared variables of a module are placed anew in each kernel that names them.
      module_shared_[d.name] = d;
      return;
    }
    auto memory = std::make_unique<std::vector<std::byte>>(std::max<std::size_t>(d.bytes, 1) + d.align);
    auto address = reinterpret_cast<std::uintptr_t>(memory->data());
    address = rounded(address, d.align);
    if (!d.values.empty()) {
      const std::vector<std::string> values = pieces(d.values.substr(1, d.values.rfind('}') - 1), ',');
      if (values.empty()) throw Error("values of " + d.name);
      const std::size_t element = d.bytes / values.size();
      if (element * values.size() != d.bytes) throw Error("values of " + d.name + ": fewer than its elements");
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t bits = bits_of(values[i]);
        std::memcpy(reinterpret_cast<void*>(address + i * element), &bits, element);
      }
    }
    s.kind = Symbol::kAddress;
    s.value = static_cast<std::int64_t>(address);
    module_.variables.push_back(std::move(memory));
    scopes_[0].symbols[d.name] = s;
  }

  void kernel() {
    auto k = std::make_unique<Kernel>();
    kernel_ = k.get();
    k->name = word();
    scopes_.resize(1);
    scope_ = open_scope(0);
    constants_.clear();
    pending_.clear();
    specials_.clear();
    skip_space();
    if (text_[at_] == '(') {
      ++at_;
      for (const std::string& p : pieces(until(')'), ',')) {
        const Declaration d = declaration(p);
        k->parameter_bytes = rounded(k->parameter_bytes, d.align);
        k->parameters.push_back({k->parameter_bytes, d.bytes});
        Symbol s;
        s.kind = Symbol::kParameter;
        s.value = static_cast<std::int64_t>(k->parameter_bytes);
        scopes_[static_cast<std::size_t>(scope_)].symbols[d.name] = s;
        k->parameter_bytes += d.bytes;
      }
    }
    k->parameter_base = new_register(true);
    k->local_base = new_register(true);
    for (std::string w = word(); !w.empty(); w = word()) {
      const std::string rest(until('\n'));
      if (w == ".maxntid" || w == ".reqntid") {
        k->most_threads = 1;
        for (const std::string& n : pieces(rest, ',')) k->most_threads *= static_cast<int>(integer(n));
      }
    }
    skip_space();
    if (text_[at_] != '{') throw Error("kernel " + k->name + ": no body");
    ++at_;
    body();
    for (const auto& [at, name, scope] : pending_) k->code[at].target = label(name, scope);
    share_registers(*k);
    module_.kernels[k->name] = std::move(k);
  }

  int open_scope(int parent) {
    scopes_.emplace_back().parent = parent;
    return static_cast<int>(scopes_.size()) - 1;
  }

  void body() {
    const int outermost = scope_;
    for (;;) {
      skip_space();
      if (at_ >= text_.size()) throw Error("end of text in kernel " + kernel_->name);
      if (text_[at_] == '{') {
        ++at_;
        scope_ = open_scope(scope_);
        continue;
      }
      if (text_[at_] == '}') {
        ++at_;
        if (scope_ == outermost) return;
        scope_ = scopes_[static_cast<std::size_t>(scope_)].parent;
        continue;
      }
      if (text_[at_] == ';') {
        ++at_;
        continue;
      }
      std::size_t end = at_;
      while (end < text_.size() && is_name(text_[end])) ++end;
      std::size_t after = end;
      while (after < text_.size() && (text_[after] == ' ' || text_[after] == '\t')) ++after;
      if (end > at_ && text_[after] == ':' && text_[after + 1] != ':') {
        scopes_[static_cast<std::size_t>(scope_)].labels[text_.substr(at_, end - at_)] =
            static_cast<std::uint32_t>(kernel_->code.size());
        at_ = after + 1;
        continue;
      }
      const std::uint32_t line_number = line();
      const std::string text(trimmed(until(';')));
      statement(text, line_number);
    }
  }

  void statement(const std::string& text, std::uint32_t line_number) {
    if (text.starts_with(".reg")) {
      registers(text.substr(4));
    } else if (text.starts_with(".shared") || text.starts_with(".local")) {
      const Declaration d = declaration(text);
      Symbol s;
      std::size_t& size = d.space == ".shared" ? kernel_->static_shared : kernel_->local_bytes;
      size = rounded(size, d.align);
      s.kind = d.space == ".shared" ? Symbol::kShared : Symbol::kLocal;
      s.value = static_cast<std::int64_t>(size);
      size += d.bytes;
      scopes_[static_cast<std::size_t>(scope_)].symbols[d.name] = s;
    } else if (text.starts_with(".pragma") || text.starts_with(".loc")) {
    } else if (text.starts_with(".")) {
      throw Error("unknown declaration " + text);
    } else {
      instruction(text, line_number);
    }
  }

  void registers(std::string_view text) {
    text = trimmed(text);
    const std::size_t space = text.find_first_of(" \t");
    const std::string_view type = text.substr(0, space);
    const bool wide = type.ends_with("64");
    const bool predicate = type == ".pred";
    for (const std::string& name : pieces(text.substr(space), ',')) {
      const std::size_t open = name.find('<');
      if (open == std::string::npos) {
        add_register(name, wide, predicate);
        continue;
      }
      const std::int64_t count = integer(std::string_view(name).substr(open + 1, name.find('>') - open - 1));
      for (std::int64_t i = 0; i < count; ++i) add_register(name.substr(0, open) + std::to_string(i), wide, predicate);
    }
  }
  Operand new_register(bool wide, bool predicate = false) {
    Operand o;
    o.wide = wide;
    const std::size_t bytes = predicate ? 4 : wide ? 8 * kLanes : 4 * kLanes;
    if (!predicate) kernel_->register_bytes = rounded(kernel_->register_bytes, 64);
    o.at = static_cast<std::uint32_t>(kernel_->register_bytes);
    kernel_->register_bytes += bytes;
    return o;
  }
  void add_register(const std::string& name, bool wide, bool predicate) {
    Symbol s;
    s.predicate = predicate;
    s.operand = new_register(wide, predicate);
    scopes_[static_cast<std::size_t>(scope_)].symbols[name] = s;
  }

  const Symbol* find(std::string_view name) const {
    for (int s = scope_; s >= 0; s = scopes_[static_cast<std::size_t>(s)].parent) {
      const auto& symbols = scopes_[static_cast<std::size_t>(s)].symbols;
      if (const auto it = symbols.find(name); it != symbols.end()) return &it->second;
    }
    return nullptr;
  }
  std::uint32_t label(const std::string& name, int scope) const {
    for (int s = scope; s >= 0; s = scopes_[static_cast<std::size_t>(s)].parent) {
      const auto& labels = scopes_[static_cast<std::size_t>(s)].labels;
      if (const auto it = labels.find(name); it != labels.end()) return it->second;
    }
    throw Error("no label " + name + " in kernel " + kernel_->name);
  }

  /// Lanes that all hold these bits.
  Operand constant(std::uint64_t bits, bool wide) {
    const auto [it, fresh] = constants_.try_emplace({bits, wide}, 0);
    std::vector<std::byte>& all = kernel_->constants;
    if (fresh) {
      it->second = static_cast<std::uint32_t>(all.size());
      const std::size_t size = wide ? 8 : 4;
      all.resize(all.size() + size * kLanes);
      for (int i = 0; i < kLanes; ++i)
        std::memcpy(all.data() + it->second + static_cast<std::size_t>(i) * size, &bits, size);
    }
    Operand o;
    o.at = it->second;
    o.constant = true;
    o.wide = wide;
    return o;
  }

  const Symbol& shared_of_module(const std::string& name) {
    const Declaration& d = module_shared_.at(name);
    Symbol s;
    if (d.dynamic) {
      s.kind = Symbol::kDynamicShared;
      s.value = static_cast<std::int64_t>(rounded(kernel_->static_shared, std::max<std::size_t>(d.align, 16)));
    } else {
      kernel_->static_shared = rounded(kernel_->static_shared, d.align);
      s.kind = Symbol::kShared;
      s.value = static_cast<std::int64_t>(kernel_->static_shared);
      kernel_->static_shared += d.bytes;
    }
    return scopes_[1].symbols[name] = s;
  }

  /// A name or a number; `wide` says how wide lanes of a number are to be.
  Operand operand(std::string text, bool wide) {
    bool negated = false;
    if (!text.empty() && text[0] == '!') negated = true, text = std::string(trimmed(text.substr(1)));
    if (text == "_") {
      Operand o;
      o.absent = true;
      return o;
    }
    const char first = text.empty() ? ' ' : text[0];
    if (std::isdigit(static_cast<unsigned char>(first)) != 0 || first == '-') return constant(bits_of(text), wide);
    const Symbol* s = find(text);
    if (s == nullptr && module_shared_.contains(text)) s = &shared_of_module(text);
    if (s == nullptr) {
      if (first == '%') return special(text);
      throw Error("unknown name " + text);
    }
    switch (s->kind) {
      case Symbol::kRegister: {
        Operand o = s->operand;
        o.negated = negated;
        return o;
      }
      case Symbol::kShared:
      case Symbol::kDynamicShared:
      case Symbol::kAddress: return constant(static_cast<std::uint64_t>(s->value), wide || s->kind == Symbol::kAddress);
      case Symbol::kLocal: {
        Operand o = kernel_->local_base;
        o.offset = s->value;
        return o;
      }
      default: {
        Operand o = kernel_->parameter_base;
        o.offset = s->value;
        return o;
      }
    }
  }

  Operand special(const std::string& name) {
    const auto [it, fresh] = specials_.try_emplace(name);
    if (fresh) {
      it->second = new_register(name.ends_with("64"));
      kernel_->specials.push_back({name, it->second});
    }
    return it->second;
  }

  /// What is within [ ].
  Operand address(std::string_view text) {
    text = trimmed(text);
    std::int64_t offset = 0;
    std::size_t cut = text.find('+');
    if (cut == std::string_view::npos) cut = text.find('-', 1);
    if (cut != std::string_view::npos) {
      offset = integer(trimmed(text.substr(cut + 1)));
      if (text[cut] == '-') offset = -offset;
      text = trimmed(text.substr(0, cut));
    }
    Operand o = operand(std::string(text), true);
    o.offset += offset;
    return o;
  }

  void instruction(std::string_view text, std::uint32_t line_number) {
    Instruction i;
    i.line = line_number;
    const std::string whole(text);
    if (text.front() == '@') {
      const std::size_t end = text.find_first_of(" \t");
      i.guarded = true;
      i.guard = operand(std::string(text.substr(1, end - 1)), false);
      text = trimmed(text.substr(end));
    }
    const std::size_t end = std::min(text.find_first_of(" \t{"), text.size());
    const std::vector<std::string> name = pieces(std::string(text.substr(0, end)), '.');
    const std::vector<std::string> operands = pieces(text.substr(end), ',');
    const std::string& base = name.front();
    try {
      if (base == "bra") {
        pending_.emplace_back(kernel_->code.size(), operands.at(0), scope_);
      } else {
        operands_of(i, name, operands);
      }
      decode(i, name);
    } catch (const Error& e) {
      throw Error("line " + std::to_string(line_number) + ": " + whole + ": " + e.what());
    }
    kernel_->code.push_back(std::move(i));
    kernel_->text.push_back(whole);
  }

  /// Whether numbers among the operands have 64 bits.
  static bool wide_numbers(const std::vector<std::string>& name) {
    const std::string& last = name.back();
    return last == "b64" || last == "u64" || last == "s64" || last == "f64";
  }

  void operands_of(Instruction& i, const std::vector<std::string>& name, const std::vector<std::string>& operands) {
    const std::string& base = name.front();
    const bool wide = wide_numbers(name);
    // Stores and what has no result begin with what they read.
    const bool no_result = base == "st" || base == "red" || base == "bar" || base == "barrier" || base == "cp" ||
                           base == "prefetch" || base == "fence" || base == "membar" || base == "nanosleep" ||
                           base == "stmatrix" || base == "setmaxnreg" || base == "griddepcontrol" || base == "ret" ||
                           base == "exit" || base == "trap" || (base == "wgmma" && name.at(1) != "mma_async") ||
                           (base == "mbarrier" && (name.at(1) == "init" || name.at(1) == "inval"));
    const bool result = !no_result || (base == "bar" && name.size() > 1 && name[1] == "red");
    for (std::size_t n = 0; n < operands.size(); ++n) {
      const std::string& text = operands[n];
      std::vector<Operand>& to = result && n == 0 ? i.d : i.s;
      if (text[0] == '{') {
        for (const std::string& part : pieces(std::string_view(text).substr(1, text.rfind('}') - 1), ','))
          to.push_back(operand(part, wide));
      } else if (text[0] == '[') {
        i.s.push_back(address(std::string_view(text).substr(1, text.rfind(']') - 1)));
      } else if (result && n == 0 && text.find('|') != std::string::npos) {
        for (const std::string& part : pieces(text, '|')) to.push_back(operand(part, wide));
      } else {
        const bool count = (base == "shl" || base == "shr") && n == 2;  // 32 bits, whatever is shifted
        const bool narrow = count || (base == "bfe" && n > 1) || (base == "bfi" && n > 2) || base == "shfl" ||
                            (base == "mul" && name.size() > 1 && name[1] == "wide") || base == "setmaxnreg";
        const bool sum = base == "mad" && name.size() > 1 && name[1] == "wide" && n == 3;
        to.push_back(operand(text, (wide && !narrow) || sum));
      }
    }
  }

  std::string text_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;
  std::uint32_t line_ = 1;
  Module module_;
  Kernel* kernel_ = nullptr;
  int scope_ = 0;
  std::vector<Scope> scopes_ = std::vector<Scope>(1);
  std::map<std::string, Declaration, std::less<>> module_shared_;
  std::map<std::pair<std::uint64_t, bool>, std::uint32_t> constants_;
  std::map<std::string, Operand, std::less<>> specials_;
  std::vector<std::tuple<std::size_t, std::string, int>> pending_;  ///< branches to labels
};

}  // namespace

Module parse(std::string_view text) {
  Parser parser(text);
  try {
    return parser.parse();
  } catch (const Error& e) {
    throw Error("PTX, line " + std::to_string(parser.line()) + ": " + e.what());
  }
}

}  // namespace emulator
