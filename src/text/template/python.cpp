#include "text/template/python.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/template/evaluator.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

/// Writes a value and notes whether any of it came from outside. Stops when the sandbox is used up.
class Writer {
 public:
  explicit Writer(Evaluator& evaluator) : evaluator_(evaluator) {}
  MarkedText out;

 protected:
  bool go_on() { return evaluator_.step() && evaluator_.allows(out.size() * 2); }
  Evaluator& evaluator_;
};

class ReprWriter : public Writer {
 public:
  using Writer::Writer;

  void write(const Value& value) {
    if (!go_on()) return;
    if (value.is_string()) {
      write_string(value.as_text());
    } else if (value.is_none()) {
      out.append("None", false);
    } else if (value.is_bool()) {
      out.append(value.as_bool() ? "True" : "False", false);
    } else if (value.is_int()) {
      out.append(std::to_string(value.as_int()), value.from_outside());
    } else if (value.is_float()) {
      out.append(float_repr(value.as_float()), value.from_outside());
    } else if (value.is_sequence()) {
      write_sequence(value);
    } else if (value.is_dict()) {
      write_dict(value.as_dict());
    } else if (value.is_undefined()) {
      out.append("Undefined", false);
    } else {
      out.append("<", false);
      out.append(value.type_name(), false);
      out.append(">", false);
    }
  }

 private:
  void write_sequence(const Value& value) {
    const List& items = value.as_list();
    out.append(value.is_tuple() ? "(" : "[", false);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(", ", false);
      write(items[i]);
      if (evaluator_.failed()) return;
    }
    if (value.is_tuple() && items.size() == 1) out.append(",", false);
    out.append(value.is_tuple() ? ")" : "]", false);
  }
  void write_dict(const Dict& dict) {
    out.append("{", false);
    bool first = true;
    for (const auto& [key, item] : dict.entries()) {
      if (!first) out.append(", ", false);
      first = false;
      write(key);
      out.append(": ", false);
      write(item);
      if (evaluator_.failed()) return;
    }
    out.append("}", false);
  }
  void write_string(const MarkedText& text) {
    const bool single =
        text.text().find('\'') == std::string::npos || text.text().find('"') != std::string::npos;
    const char quote = single ? '\'' : '"';
    out.append({&quote, 1}, false);
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(std::string_view(text.text()).substr(at));
      const bool outside = text.marks()[at] != 0;
      if (c.code_point == static_cast<unsigned char>(quote) || c.code_point == '\\') {
        out.append("\\", outside);
        out.append(text, at, c.length);
      } else if (c.code_point == '\n') {
        out.append("\\n", outside);
      } else if (c.code_point == '\r') {
        out.append("\\r", outside);
      } else if (c.code_point == '\t') {
        out.append("\\t", outside);
      } else if (c.code_point < 0x20 || c.code_point == 0x7F) {
        constexpr std::string_view kHex = "0123456789abcdef";
        const char escape[4] = {'\\', 'x', kHex[c.code_point >> 4], kHex[c.code_point & 15]};
        out.append({escape, 4}, outside);
      } else {
        out.append(text, at, c.length);
      }
      at += c.length;
    }
    out.append({&quote, 1}, false);
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(Evaluator& evaluator, const JsonStyle& style) : Writer(evaluator), style_(style) {}

  void write(const Value& value, int64_t level) {
    if (!go_on()) return;
    if (value.is_string()) {
      write_string(value.as_text());
    } else if (value.is_none()) {
      put("null");
    } else if (value.is_bool()) {
      put(value.as_bool() ? "true" : "false");
    } else if (value.is_int() || value.is_float()) {
      outside_ |= value.from_outside();
      put(number(value));
    } else if (value.is_sequence()) {
      write_sequence(value.as_list(), level);
    } else if (value.is_dict()) {
      write_dict(value.as_dict(), level);
    } else {
      evaluator_.fail("a value of type " + std::string(value.type_name()) +
                      (value.is_undefined() ? " (\"" + value.undefined_name() + "\")" : "") +
                      " cannot be written as JSON");
    }
  }
  [[nodiscard]] bool outside() const { return outside_; }

 private:
  void put(std::string_view text) { out.append(text, false); }

  static std::string number(const Value& value) {
    if (value.is_int()) return std::to_string(value.as_int());
    const double number = value.as_float();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_repr(number);
  }
  void new_line(int64_t level) {
    if (style_.indent < 0) return;
    const int64_t spaces = style_.indent * level;
    if (!evaluator_.allows(out.size() * 2 + static_cast<uint64_t>(spaces))) return;
    put("\n" + std::string(static_cast<size_t>(spaces), ' '));
  }
  void write_sequence(const List& items, int64_t level) {
    if (items.empty()) {
      put("[]");
      return;
    }
    put("[");
    for (size_t i = 0; i < items.size() && !evaluator_.failed(); ++i) {
      if (i > 0) put(style_.item_separator);
      new_line(level + 1);
      write(items[i], level + 1);
    }
    new_line(level);
    put("]");
  }
  void write_dict(const Dict& dict, int64_t level) {
    if (dict.size() == 0) {
      put("{}");
      return;
    }
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return a->first.is_string() && b->first.is_string() &&
               a->first.as_text().text() < b->first.as_text().text();
      });
    }
    put("{");
    bool first = true;
    for (const Dict::Entry* entry : entries) {
      if (evaluator_.failed()) return;
      if (!first) put(style_.item_separator);
      first = false;
      new_line(level + 1);
      write_key(entry->first);
      put(style_.key_separator);
      write(entry->second, level + 1);
    }
    new_line(level);
    put("}");
  }
  void write_key(const Value& key) {
    if (key.is_string()) {
      write_string(key.as_text());
      return;
    }
    std::string text = key.is_none()   ? "null"
                       : key.is_bool() ? (key.as_bool() ? "true" : "false")
                                       : number(key);
    put("\"" + text + "\"");
  }
  void write_string(const MarkedText& text) {
    outside_ |= text.any_from_outside();
    std::string json = "\"";
    const std::string& all = text.text();
    for (size_t at = 0; at < all.size();) {
      const Utf8Char c = decode_utf8(std::string_view(all).substr(at));
      switch (c.code_point) {
        case '"':
          json += "\\\"";
          break;
        case '\\':
          json += "\\\\";
          break;
        case '\n':
          json += "\\n";
          break;
        case '\r':
          json += "\\r";
          break;
        case '\t':
          json += "\\t";
          break;
        case '\b':
          json += "\\b";
          break;
        case '\f':
          json += "\\f";
          break;
        default:
          if (c.code_point < 0x20 || (style_.ascii && c.code_point >= 0x7F)) {
            escape(json, c.code_point);
          } else {
            json.append(all, at, c.length);
          }
      }
      at += c.length;
    }
    put(json + "\"");
  }
  static void escape(std::string& json, uint32_t code_point) {
    const auto unit = [&json](uint32_t value) {
      constexpr std::string_view kHex = "0123456789abcdef";
      json += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) json += kHex[value >> shift & 15];
    };
    if (code_point >= 0x10000) {
      unit(0xD800 + ((code_point - 0x10000) >> 10));
      unit(0xDC00 + ((code_point - 0x10000) & 0x3FF));
    } else {
      unit(code_point);
    }
  }

  JsonStyle style_;
  bool outside_ = false;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Shortest digits in scientific form, then Python's choice of form by the exponent.
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string scientific(buffer, result.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    std::string digits = scientific.substr(e + 2);
    if (digits.size() < 2) digits.insert(0, 1, '0');
    return scientific.substr(0, e) + "e" + scientific[e + 1] + digits;
  }
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

MarkedText to_text(Evaluator& evaluator, const Value& value) {
  if (value.is_string()) return value.as_text();
  if (value.is_undefined()) return {};
  return to_repr(evaluator, value);
}

MarkedText to_repr(Evaluator& evaluator, const Value& value) {
  ReprWriter writer(evaluator);
  writer.write(value);
  return std::move(writer.out);
}

MarkedText to_json(Evaluator& evaluator, const Value& value, const JsonStyle& style) {
  JsonWriter writer(evaluator, style);
  writer.write(value, 0);
  return {writer.out.text(), writer.outside()};
}

}  // namespace tandem::text::jinja
