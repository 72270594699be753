// Filters on strings and numbers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/template/evaluator.h"
#include "text/template/python.h"
#include "text/template/text_ops.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

using Args = const Arguments&;

/// An integer argument, or a default where it is missing.
int64_t integer_or(Evaluator& e, Args arguments, size_t at, int64_t missing) {
  const Value& value = arg(arguments, at);
  if (value.is_undefined() || value.is_none()) return missing;
  if (value.is_int() || value.is_bool()) return value.as_int();
  e.fail("expected an integer, found " + std::string(value.type_name()));
  return missing;
}

MarkedText text_or(Evaluator& e, Args arguments, size_t at, std::string_view missing) {
  const Value& value = arg(arguments, at);
  if (value.is_undefined()) return {std::string(missing), false};
  return to_text(e, value);
}

Value trim(Evaluator& e, const Value& self, Args a) {
  const MarkedText text = to_text(e, self);
  if (arg(a, 0).is_undefined() || arg(a, 0).is_none()) {
    return e.text(strip(text, std::nullopt, true, true));
  }
  const MarkedText characters = to_text(e, arg(a, 0));
  return e.text(strip(text, characters.text(), true, true));
}

Value filter_upper(Evaluator& e, const Value& self, Args) {
  return e.text(upper(to_text(e, self)));
}
Value filter_lower(Evaluator& e, const Value& self, Args) {
  return e.text(lower(to_text(e, self)));
}
Value filter_capitalize(Evaluator& e, const Value& self, Args) {
  return e.text(capitalize(to_text(e, self)));
}
Value filter_string(Evaluator& e, const Value& self, Args) {
  return e.text(to_text(e, self));
}

/// Jinja's own title: words begin after white space, - ( { [ and <.
Value filter_title(Evaluator& e, const Value& self, Args) {
  const MarkedText text = to_text(e, self);
  MarkedText out;
  MarkedText word;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text.text()).substr(at);
    const size_t length = decode_utf8(rest).length;
    if (is_space_at(rest) || std::string_view("-({[<").find(rest[0]) != std::string_view::npos) {
      out.append(capitalize(word));
      word.clear();
      out.append(text, at, length);
    } else {
      word.append(text, at, length);
    }
    at += length;
  }
  out.append(capitalize(word));
  return e.text(std::move(out));
}

Value filter_replace(Evaluator& e, const Value& self, Args a) {
  const MarkedText text = to_text(e, self);
  const MarkedText from = to_text(e, arg(a, 0));
  const MarkedText to = to_text(e, arg(a, 1));
  const uint64_t worst = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (!e.allows((text.size() + worst * to.size()) * 2)) return {};
  return e.text(replace(text, from.text(), to, integer_or(e, a, 2, -1)));
}

Value filter_default(Evaluator&, const Value& self, Args a) {
  const bool falsy_too = arg(a, 1).truthy();
  if (!self.is_undefined() && (!falsy_too || self.truthy())) return self;
  return arg(a, 0).is_undefined() ? Value::string("") : arg(a, 0);
}

Value filter_length(Evaluator& e, const Value& self, Args) {
  if (self.is_string()) {
    return Value::integer(static_cast<int64_t>(count_characters(self.as_text().text())));
  }
  if (self.is_sequence()) return Value::integer(static_cast<int64_t>(self.as_list().size()));
  if (self.is_dict()) return Value::integer(static_cast<int64_t>(self.as_dict().size()));
  if (self.is_undefined()) return Value::integer(0);
  return e.fail("a value of type " + std::string(self.type_name()) + " has no length");
}

Value filter_tojson(Evaluator& e, const Value& self, Args a) {
  JsonStyle style;
  const Value& indent = arg(a, 0);
  if (indent.is_int()) style.indent = std::clamp<int64_t>(indent.as_int(), 0, 64);
  style.item_separator = style.indent >= 0 ? "," : ", ";
  style.key_separator = ": ";
  if (arg(a, 2).is_sequence() && arg(a, 2).as_list().size() == 2) {
    style.item_separator = to_text(e, arg(a, 2).as_list()[0]).text();
    style.key_separator = to_text(e, arg(a, 2).as_list()[1]).text();
  }
  style.ascii = arg(a, 1).truthy();
  style.sort_keys = arg(a, 3).truthy();
  return e.text(to_json(e, self, style));
}

/// The longest number at the front of a string, as int() and float() read it; false if the string
/// is not a number altogether.
bool parse_number(std::string_view text, double& number) {
  while (!text.empty() && is_space_at(text)) text.remove_prefix(decode_utf8(text).length);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

Value filter_int(Evaluator& e, const Value& self, Args a) {
  Value missing = arg(a, 0).is_undefined() ? Value::integer(0) : arg(a, 0);
  double number = 0;
  if (self.is_bool() || self.is_int()) return Value::integer(self.as_int(), self.from_outside());
  if (self.is_float()) {
    number = self.as_float();
  } else if (self.is_string()) {
    const std::string& text = self.as_text().text();
    const int64_t base = integer_or(e, a, 1, 10);
    if (base < 2 || base > 36) return e.fail("a number's base must be 2 to 36");
    const MarkedText trimmed = strip(self.as_text(), std::nullopt, true, true);
    std::string_view digits = trimmed.text();
    if (digits.starts_with('+')) digits.remove_prefix(1);
    int64_t whole = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), whole,
                                        static_cast<int>(base));
    if (result.ec == std::errc() && result.ptr == digits.data() + digits.size()) {
      return Value::integer(whole, self.as_text().any_from_outside());
    }
    if (!parse_number(text, number)) return missing;
  } else {
    return missing;
  }
  if (!(std::abs(number) < 9e18)) return missing;
  const bool outside = self.is_string() ? self.as_text().any_from_outside() : self.from_outside();
  return Value::integer(static_cast<int64_t>(number), outside);
}

Value filter_float(Evaluator&, const Value& self, Args a) {
  double number = 0;
  if (self.is_number()) return Value::number(self.as_float(), self.from_outside());
  if (self.is_string() && parse_number(self.as_text().text(), number)) {
    return Value::number(number, self.as_text().any_from_outside());
  }
  return arg(a, 0).is_undefined() ? Value::number(0) : arg(a, 0);
}

Value filter_abs(Evaluator& e, const Value& self, Args) {
  if (self.is_float()) return Value::number(std::abs(self.as_float()), self.from_outside());
  if (!self.is_number()) return e.fail("abs of " + std::string(self.type_name()));
  return self.as_int() < 0 ? e.binary("-", Value::integer(0), self) : self;
}

Value filter_round(Evaluator& e, const Value& self, Args a) {
  if (!self.is_number()) return e.fail("round of " + std::string(self.type_name()));
  const int64_t precision = std::clamp<int64_t>(integer_or(e, a, 0, 0), -300, 300);
  const std::string method = text_or(e, a, 1, "common").text();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.as_float() * scale;
  double rounded = 0;
  if (method == "common") {
    rounded = std::nearbyint(scaled);  // Python rounds halves to even
  } else if (method == "ceil") {
    rounded = std::ceil(scaled);
  } else if (method == "floor") {
    rounded = std::floor(scaled);
  } else {
    return e.fail("round knows the methods common, ceil and floor");
  }
  return Value::number(rounded / scale, self.from_outside());
}

Value filter_indent(Evaluator& e, const Value& self, Args a) {
  const MarkedText text = to_text(e, self);
  MarkedText pad;
  if (arg(a, 0).is_string()) {
    pad = arg(a, 0).as_text();
  } else {
    const int64_t width = integer_or(e, a, 0, 4);
    if (width < 0 || width > 1000) return e.fail("indent's width must be 0 to 1000");
    pad = MarkedText(std::string(static_cast<size_t>(width), ' '), false);
  }
  const bool first = arg(a, 1).truthy();
  const bool blank = arg(a, 2).truthy();
  // Jinja adds a newline before it splits, so that one at the end is kept.
  MarkedText with_end = text;
  with_end.append("\n", false);
  const std::vector<MarkedText> lines = split_lines(with_end, false);
  if (!e.allows((text.size() + lines.size() * (pad.size() + 1)) * 2)) return {};
  MarkedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", false);
    if (i == 0 ? first : (blank || !lines[i].empty())) out.append(pad);
    out.append(lines[i]);
  }
  return e.text(std::move(out));
}

Value filter_center(Evaluator& e, const Value& self, Args a) {
  const MarkedText text = to_text(e, self);
  const auto length = static_cast<int64_t>(count_characters(text.text()));
  const int64_t width = std::max(integer_or(e, a, 0, 80), length);
  if (!e.allows(static_cast<uint64_t>(width) * 2)) return {};
  const int64_t pad = width - length;
  const int64_t left = pad / 2 + (pad & width & 1);
  MarkedText out(std::string(static_cast<size_t>(left), ' '), false);
  out.append(text);
  out.append(std::string(static_cast<size_t>(pad - left), ' '), false);
  return e.text(std::move(out));
}

Value filter_wordcount(Evaluator& e, const Value& self, Args) {
  return Value::integer(static_cast<int64_t>(split_space(to_text(e, self), -1).size()));
}

Value filter_truncate(Evaluator& e, const Value& self, Args a) {
  const MarkedText text = to_text(e, self);
  const int64_t length = integer_or(e, a, 0, 255);
  const bool kill_words = arg(a, 1).truthy();
  const MarkedText end = text_or(e, a, 2, "...");
  const int64_t leeway = integer_or(e, a, 3, 5);
  const std::vector<size_t> offsets = character_offsets(text);
  const auto count = static_cast<int64_t>(offsets.size() - 1);
  const auto end_count = static_cast<int64_t>(count_characters(end.text()));
  if (length < end_count || leeway < 0) return e.fail("truncate's length or leeway is too small");
  if (count <= length || count - length <= leeway) return e.text(text);
  MarkedText out = text.substr(0, offsets[static_cast<size_t>(length - end_count)]);
  if (!kill_words) {
    const size_t space = out.text().rfind(' ');
    if (space != std::string::npos) out.truncate(space);
  }
  out.append(end);
  return e.text(std::move(out));
}

Value filter_escape(Evaluator& e, const Value& self, Args) {
  const MarkedText text = to_text(e, self);
  MarkedText out;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::array<std::string_view, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#39;",
                                                          "&#34;"};
    const size_t which = kSpecial.find(text.text()[i]);
    if (which == std::string_view::npos) {
      out.append(text, i, 1);
    } else {
      out.append(kEscapes[which], text.marks()[i] != 0);
    }
  }
  return e.text(std::move(out));
}

Value filter_safe(Evaluator&, const Value& self, Args) {
  return self;
}

/// One %-conversion of printf style, as far as templates use them.
bool convert(Evaluator& e, std::string_view flags, int precision, char kind, const Value& value,
             MarkedText& out) {
  MarkedText text;
  switch (kind) {
    case 's':
      text = to_text(e, value);
      break;
    case 'r':
      text = to_repr(e, value);
      break;
    case 'd':
    case 'i':
    case 'x':
    case 'X': {
      if (!value.is_number()) return false;
      if (value.is_float() && !(std::abs(value.as_float()) < 9e18)) return false;
      const int64_t number =
          value.is_float() ? static_cast<int64_t>(value.as_float()) : value.as_int();
      char buffer[32];
      const bool hex = kind == 'x' || kind == 'X';
      const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, hex ? 16 : 10);
      text = MarkedText(std::string(buffer, end.ptr), value.from_outside());
      if (kind == 'X') text = upper(text);
      break;
    }
    case 'f': {
      if (!value.is_number()) return false;
      char buffer[512];
      const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value.as_float(),
                                     std::chars_format::fixed, precision < 0 ? 6 : precision);
      if (end.ec != std::errc()) return false;
      text = MarkedText(std::string(buffer, end.ptr), value.from_outside());
      break;
    }
    default:
      return false;
  }
  const bool left = flags.find('-') != std::string_view::npos;
  const bool zero = flags.starts_with('0');
  size_t width = 0;
  const size_t digits = flags.find_first_of("123456789");
  if (digits != std::string_view::npos) {
    std::from_chars(flags.data() + digits, flags.data() + flags.size(), width);
  }
  width = std::min<size_t>(width, 1000);
  const size_t length = count_characters(text.text());
  const std::string pad(width > length ? width - length : 0, zero && !left ? '0' : ' ');
  if (!left) out.append(pad, false);
  out.append(text);
  if (left) out.append(pad, false);
  return true;
}

Value filter_format(Evaluator& e, const Value& self, Args a) {
  const MarkedText format = to_text(e, self);
  const std::string& all = format.text();
  MarkedText out;
  size_t next = 0;
  for (size_t at = 0; at < all.size();) {
    if (all[at] != '%') {
      const size_t end = std::min(all.find('%', at), all.size());
      out.append(format, at, end - at);
      at = end;
      continue;
    }
    const size_t begin = at + 1;
    size_t end = begin;
    while (end < all.size() &&
           std::string_view("-+ #0123456789").find(all[end]) != std::string_view::npos) {
      ++end;
    }
    const std::string_view flags = std::string_view(all).substr(begin, end - begin);
    int precision = -1;
    if (end < all.size() && all[end] == '.') {
      const char* first = all.data() + end + 1;
      const auto result = std::from_chars(first, all.data() + all.size(), precision);
      precision = std::clamp(precision, 0, 100);
      end = static_cast<size_t>(result.ptr - all.data());
    }
    if (end >= all.size()) return e.fail("a format ends in the middle of a conversion");
    if (all[end] == '%') {
      out.append(format, end, 1);
    } else if (next >= a.positional.size()) {
      return e.fail("a format has more conversions than arguments");
    } else if (!convert(e, flags, precision, all[end], a.positional[next++], out)) {
      return e.fail("a format's conversion \"" + all.substr(at, end + 1 - at) +
                    "\" does not fit its argument");
    }
    if (e.failed() || !e.allows(out.size() * 2)) return {};
    at = end + 1;
  }
  return e.text(std::move(out));
}

constexpr std::array kFilters = {
    Builtin{"abs", filter_abs, ""},
    Builtin{"capitalize", filter_capitalize, ""},
    Builtin{"center", filter_center, "width"},
    Builtin{"count", filter_length, ""},
    Builtin{"d", filter_default, "default_value,boolean"},
    Builtin{"default", filter_default, "default_value,boolean"},
    Builtin{"e", filter_escape, ""},
    Builtin{"escape", filter_escape, ""},
    Builtin{"float", filter_float, "default"},
    Builtin{"forceescape", filter_escape, ""},
    Builtin{"format", filter_format, "*"},
    Builtin{"indent", filter_indent, "width,first,blank"},
    Builtin{"int", filter_int, "default,base"},
    Builtin{"length", filter_length, ""},
    Builtin{"lower", filter_lower, ""},
    Builtin{"replace", filter_replace, "old,new,count"},
    Builtin{"round", filter_round, "precision,method"},
    Builtin{"safe", filter_safe, ""},
    Builtin{"string", filter_string, ""},
    Builtin{"title", filter_title, ""},
    Builtin{"tojson", filter_tojson, "indent,ensure_ascii,separators,sort_keys"},
    Builtin{"trim", trim, "chars"},
    Builtin{"truncate", filter_truncate, "length,killwords,end,leeway"},
    Builtin{"upper", filter_upper, ""},
    Builtin{"wordcount", filter_wordcount, ""},
};

}  // namespace

const Builtin* find_text_filter(std::string_view name) {
  for (const Builtin& builtin : kFilters) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace tandem::text::jinja
