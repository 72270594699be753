// Methods of strings, lists and dicts. Those that would change their object do not exist, as in
// the sandbox that models' templates are written for.
#include <algorithm>
#include <array>

#include "text/template/evaluator.h"
#include "text/template/python.h"
#include "text/template/text_ops.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

using Args = const Arguments&;

Value wrong(Evaluator& e, std::string_view wanted, const Value& found) {
  return e.fail("expected " + std::string(wanted) + ", found " + std::string(found.type_name()));
}

int64_t integer_or(Evaluator& e, const Value& value, int64_t missing) {
  if (value.is_undefined() || value.is_none()) return missing;
  if (value.is_int() || value.is_bool()) return value.as_int();
  wrong(e, "an integer", value);
  return missing;
}

Value strip_side(Evaluator& e, const Value& self, Args a, bool left, bool right) {
  if (arg(a, 0).is_undefined() || arg(a, 0).is_none()) {
    return e.text(strip(self.as_text(), std::nullopt, left, right));
  }
  if (!arg(a, 0).is_string()) return wrong(e, "a string", arg(a, 0));
  return e.text(strip(self.as_text(), arg(a, 0).as_text().text(), left, right));
}
Value str_strip(Evaluator& e, const Value& s, Args a) {
  return strip_side(e, s, a, true, true);
}
Value str_lstrip(Evaluator& e, const Value& s, Args a) {
  return strip_side(e, s, a, true, false);
}
Value str_rstrip(Evaluator& e, const Value& s, Args a) {
  return strip_side(e, s, a, false, true);
}

Value list_of(Evaluator& e, std::vector<MarkedText> parts) {
  List items;
  for (MarkedText& part : parts) {
    items.push_back(e.text(std::move(part)));
    if (e.failed()) return {};
  }
  return e.list(std::move(items));
}

Value split_side(Evaluator& e, const Value& self, Args a, bool from_right) {
  const int64_t limit = integer_or(e, arg(a, 1), -1);
  const MarkedText& text = self.as_text();
  // From the right each part costs a pass over what is left of it.
  const auto passes = static_cast<uint64_t>(std::clamp<int64_t>(from_right ? limit : 0, 0, 1000));
  if (!e.allows(text.size() * 2) || !e.step(passes * (text.size() / 16))) return {};
  if (from_right && limit > 1000) return e.fail("rsplit into more than 1000 parts");
  if (arg(a, 0).is_undefined() || arg(a, 0).is_none()) {
    if (!from_right || limit < 0) return list_of(e, split_space(text, limit));
    return e.fail("rsplit at white space with a limit is not supported");
  }
  if (!arg(a, 0).is_string()) return wrong(e, "a string", arg(a, 0));
  const std::string& separator = arg(a, 0).as_text().text();
  if (separator.empty()) return e.fail("empty separator");
  return list_of(e, split(text, separator, limit, from_right));
}
Value str_split(Evaluator& e, const Value& s, Args a) {
  return split_side(e, s, a, false);
}
Value str_rsplit(Evaluator& e, const Value& s, Args a) {
  return split_side(e, s, a, true);
}
Value str_splitlines(Evaluator& e, const Value& s, Args a) {
  return list_of(e, split_lines(s.as_text(), arg(a, 0).truthy()));
}

Value affix(Evaluator& e, const Value& self, const Value& wanted, bool at_start) {
  const auto holds = [&](const Value& candidate) {
    const std::string& text = self.as_text().text();
    if (!candidate.is_string()) return false;
    const std::string& part = candidate.as_text().text();
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  if (wanted.is_tuple()) {
    return Value::boolean(std::any_of(wanted.as_list().begin(), wanted.as_list().end(), holds));
  }
  if (!wanted.is_string()) return wrong(e, "a string or a tuple of strings", wanted);
  return Value::boolean(holds(wanted));
}
Value str_startswith(Evaluator& e, const Value& s, Args a) {
  return affix(e, s, arg(a, 0), true);
}
Value str_endswith(Evaluator& e, const Value& s, Args a) {
  return affix(e, s, arg(a, 0), false);
}

Value remove_affix(Evaluator& e, const Value& self, Args a, bool at_start) {
  if (!arg(a, 0).is_string()) return wrong(e, "a string", arg(a, 0));
  if (!affix(e, self, arg(a, 0), at_start).truthy()) return self;
  const size_t length = arg(a, 0).as_text().size();
  const MarkedText& text = self.as_text();
  return e.text(at_start ? text.substr(length) : text.substr(0, text.size() - length));
}
Value str_removeprefix(Evaluator& e, const Value& s, Args a) {
  return remove_affix(e, s, a, true);
}
Value str_removesuffix(Evaluator& e, const Value& s, Args a) {
  return remove_affix(e, s, a, false);
}

Value find_side(Evaluator& e, const Value& self, Args a, bool from_right, bool must) {
  if (!arg(a, 0).is_string()) return wrong(e, "a string", arg(a, 0));
  const std::string& text = self.as_text().text();
  const std::string& wanted = arg(a, 0).as_text().text();
  const size_t at = from_right ? find_text_last(text, wanted) : find_text(text, wanted);
  if (at == std::string::npos) {
    return must ? e.fail("substring not found") : Value::integer(-1);
  }
  return Value::integer(
      static_cast<int64_t>(count_characters(std::string_view(text).substr(0, at))));
}
Value str_find(Evaluator& e, const Value& s, Args a) {
  return find_side(e, s, a, false, false);
}
Value str_rfind(Evaluator& e, const Value& s, Args a) {
  return find_side(e, s, a, true, false);
}
Value str_index(Evaluator& e, const Value& s, Args a) {
  return find_side(e, s, a, false, true);
}

Value str_count(Evaluator& e, const Value& self, Args a) {
  if (!arg(a, 0).is_string()) return wrong(e, "a string", arg(a, 0));
  const std::string& text = self.as_text().text();
  const std::string& wanted = arg(a, 0).as_text().text();
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_characters(text) + 1));
  int64_t count = 0;
  for (size_t at = find_text(text, wanted); at != std::string::npos;
       at = find_text(text, wanted, at + wanted.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value by_filter(Evaluator& e, std::string_view name, const Value& self, Args a) {
  Arguments arguments;
  for (const Value& value : a.positional) {
    if (!value.is_undefined()) arguments.positional.push_back(value);
  }
  return e.filter(name, self, arguments);
}
Value str_replace(Evaluator& e, const Value& s, Args a) {
  return by_filter(e, "replace", s, a);
}
Value str_center(Evaluator& e, const Value& s, Args a) {
  return by_filter(e, "center", s, a);
}
Value str_upper(Evaluator& e, const Value& s, Args) {
  return e.text(upper(s.as_text()));
}
Value str_lower(Evaluator& e, const Value& s, Args) {
  return e.text(lower(s.as_text()));
}
Value str_title(Evaluator& e, const Value& s, Args) {
  return e.text(title(s.as_text()));
}
Value str_capitalize(Evaluator& e, const Value& s, Args) {
  return e.text(capitalize(s.as_text()));
}
Value str_swapcase(Evaluator& e, const Value& s, Args) {
  return e.text(swap_case(s.as_text()));
}

Value str_join(Evaluator& e, const Value& self, Args a) {
  for (const auto items = e.iterate(arg(a, 0)); const Value& item : *items) {
    if (!item.is_string()) return wrong(e, "strings to join", item);
  }
  Arguments arguments;
  arguments.positional.push_back(self);
  return e.filter("join", arg(a, 0), arguments);
}

Value pad(Evaluator& e, const Value& self, Args a, bool left, std::string_view missing) {
  const MarkedText fill =
      arg(a, 1).is_string() ? arg(a, 1).as_text() : MarkedText(std::string(missing), false);
  const auto length = static_cast<int64_t>(count_characters(self.as_text().text()));
  const int64_t count = std::max<int64_t>(integer_or(e, arg(a, 0), 0) - length, 0);
  if (!e.allows(static_cast<uint64_t>(count) * 8) || !e.step(static_cast<uint64_t>(count)))
    return {};
  MarkedText out = left ? MarkedText() : self.as_text();
  for (int64_t i = 0; i < count; ++i) out.append(fill);
  if (left) out.append(self.as_text());
  return e.text(std::move(out));
}
Value str_ljust(Evaluator& e, const Value& s, Args a) {
  return pad(e, s, a, false, " ");
}
Value str_rjust(Evaluator& e, const Value& s, Args a) {
  return pad(e, s, a, true, " ");
}

Value all_of_class(const Value& self, unsigned classes) {
  std::string_view rest = self.as_text().text();
  if (rest.empty()) return Value::boolean(false);
  while (!rest.empty()) {
    const Utf8Char c = decode_utf8(rest);
    const bool space = classes == kSpace && is_space_at(rest);
    if (!space && (CharClasses::get().of(c.code_point) & classes) == 0)
      return Value::boolean(false);
    rest.remove_prefix(c.length);
  }
  return Value::boolean(true);
}
Value str_isalpha(Evaluator&, const Value& s, Args) {
  return all_of_class(s, kLetter);
}
Value str_isdigit(Evaluator&, const Value& s, Args) {
  return all_of_class(s, kNumber);
}
Value str_isalnum(Evaluator&, const Value& s, Args) {
  return all_of_class(s, kLetter | kNumber);
}
Value str_isspace(Evaluator&, const Value& s, Args) {
  return all_of_class(s, kSpace);
}
Value str_islower(Evaluator& e, const Value& s, Args) {
  return Value::boolean(e.test("lower", s, {}));
}
Value str_isupper(Evaluator& e, const Value& s, Args) {
  return Value::boolean(e.test("upper", s, {}));
}

Value partition_side(Evaluator& e, const Value& self, Args a, bool from_right) {
  if (!arg(a, 0).is_string() || arg(a, 0).as_text().empty()) {
    return e.fail("partition needs a separator");
  }
  const MarkedText& text = self.as_text();
  const std::string& wanted = arg(a, 0).as_text().text();
  const size_t at =
      from_right ? find_text_last(text.text(), wanted) : find_text(text.text(), wanted);
  if (at == std::string::npos) {
    const Value empty = e.text("");
    return from_right ? e.tuple({empty, empty, self}) : e.tuple({self, empty, empty});
  }
  return e.tuple({e.text(text.substr(0, at)), e.text(text.substr(at, wanted.size())),
                  e.text(text.substr(at + wanted.size()))});
}
Value str_partition(Evaluator& e, const Value& s, Args a) {
  return partition_side(e, s, a, false);
}
Value str_rpartition(Evaluator& e, const Value& s, Args a) {
  return partition_side(e, s, a, true);
}

/// str.format with {}, {0} and {name}, without conversions and format specifications.
Value str_format(Evaluator& e, const Value& self, Args a) {
  const MarkedText& format = self.as_text();
  const std::string& all = format.text();
  MarkedText out;
  size_t next = 0;
  for (size_t at = 0; at < all.size(); ++at) {
    const char c = all[at];
    if (c != '{' && c != '}') {
      out.append(format, at, 1);
      continue;
    }
    if (at + 1 < all.size() && all[at + 1] == c) {
      out.append(format, at++, 1);
      continue;
    }
    const size_t end = all.find('}', at);
    if (c == '}' || end == std::string::npos) return e.fail("a format has a single brace");
    const std::string field = all.substr(at + 1, end - at - 1);
    if (field.find_first_of("!:.[") != std::string::npos) {
      return e.fail("format field \"" + field.substr(0, 60) + "\" is not supported");
    }
    const Value* value = nullptr;
    const bool is_number = field.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && field.size() < 6) {
      const size_t place = field.empty() ? next++ : std::stoul(field);
      if (place < a.positional.size()) value = &a.positional[place];
    } else {
      for (const auto& [name, named] : a.named) {
        if (name == field) value = &named;
      }
    }
    if (value == nullptr) return e.fail("a format's field has no argument");
    out.append(to_text(e, *value));
    if (!e.allows(out.size() * 2) || !e.step()) return {};
    at = end;
  }
  return e.text(std::move(out));
}

Value list_index(Evaluator& e, const Value& self, Args a) {
  const List& items = self.as_list();
  for (size_t i = 0; i < items.size(); ++i) {
    if (e.equal(items[i], arg(a, 0))) return Value::integer(static_cast<int64_t>(i));
    if (e.failed()) return {};
  }
  return e.fail("the value is not in the list");
}

Value list_count(Evaluator& e, const Value& self, Args a) {
  const List& items = self.as_list();
  return Value::integer(std::count_if(items.begin(), items.end(),
                                      [&](const Value& item) { return e.equal(item, arg(a, 0)); }));
}

Value list_copy(Evaluator&, const Value& self, Args) {
  return self;
}

Value dict_get(Evaluator&, const Value& self, Args a) {
  const Value* found = self.as_dict().find(arg(a, 0));
  if (found != nullptr) return *found;
  return arg(a, 1).is_undefined() ? Value::none() : arg(a, 1);
}
Value dict_items(Evaluator& e, const Value& self, Args) {
  return e.filter("items", self, {});
}
Value dict_keys(Evaluator& e, const Value& self, Args) {
  return e.list(*e.iterate(self));
}
Value dict_values(Evaluator& e, const Value& self, Args) {
  List values;
  for (const auto& [key, value] : self.as_dict().entries()) values.push_back(value);
  return e.list(std::move(values));
}

constexpr std::array kTextMethods = {
    Builtin{"capitalize", str_capitalize, ""},
    Builtin{"center", str_center, "width"},
    Builtin{"count", str_count, "sub"},
    Builtin{"endswith", str_endswith, "suffix"},
    Builtin{"find", str_find, "sub"},
    Builtin{"format", str_format, "*"},
    Builtin{"index", str_index, "sub"},
    Builtin{"isalnum", str_isalnum, ""},
    Builtin{"isalpha", str_isalpha, ""},
    Builtin{"isdecimal", str_isdigit, ""},
    Builtin{"isdigit", str_isdigit, ""},
    Builtin{"islower", str_islower, ""},
    Builtin{"isnumeric", str_isdigit, ""},
    Builtin{"isspace", str_isspace, ""},
    Builtin{"isupper", str_isupper, ""},
    Builtin{"join", str_join, "iterable"},
    Builtin{"ljust", str_ljust, "width,fillchar"},
    Builtin{"lower", str_lower, ""},
    Builtin{"lstrip", str_lstrip, "chars"},
    Builtin{"partition", str_partition, "sep"},
    Builtin{"removeprefix", str_removeprefix, "prefix"},
    Builtin{"removesuffix", str_removesuffix, "suffix"},
    Builtin{"replace", str_replace, "old,new,count"},
    Builtin{"rfind", str_rfind, "sub"},
    Builtin{"rjust", str_rjust, "width,fillchar"},
    Builtin{"rpartition", str_rpartition, "sep"},
    Builtin{"rsplit", str_rsplit, "sep,maxsplit"},
    Builtin{"rstrip", str_rstrip, "chars"},
    Builtin{"split", str_split, "sep,maxsplit"},
    Builtin{"splitlines", str_splitlines, "keepends"},
    Builtin{"startswith", str_startswith, "prefix"},
    Builtin{"strip", str_strip, "chars"},
    Builtin{"swapcase", str_swapcase, ""},
    Builtin{"title", str_title, ""},
    Builtin{"upper", str_upper, ""},
};

constexpr std::array kListMethods = {
    Builtin{"copy", list_copy, ""},
    Builtin{"count", list_count, "value"},
    Builtin{"index", list_index, "value"},
};

constexpr std::array kDictMethods = {
    Builtin{"copy", list_copy, ""},     Builtin{"get", dict_get, "key,default"},
    Builtin{"items", dict_items, ""},   Builtin{"keys", dict_keys, ""},
    Builtin{"values", dict_values, ""},
};

template <typename Table>
const Builtin* find_in(const Table& table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace

const Builtin* find_text_method(std::string_view name) {
  return find_in(kTextMethods, name);
}
const Builtin* find_list_method(std::string_view name) {
  return find_in(kListMethods, name);
}
const Builtin* find_dict_method(std::string_view name) {
  return find_in(kDictMethods, name);
}

}  // namespace tandem::text::jinja
