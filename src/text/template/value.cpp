#include "text/template/value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

/// A key's identity: numbers that are equal are the same key, a number and a string never are.
bool key_of(const Value& key, std::string& out) {
  if (key.is_string()) {
    out = "s" + key.as_text().text();
  } else if (key.is_bool() || key.is_int()) {
    out = "n" + std::to_string(key.as_int());
  } else if (key.is_float()) {
    const double number = key.as_float();
    const bool whole = std::floor(number) == number && std::abs(number) < 9e15;
    out = whole ? "n" + std::to_string(static_cast<int64_t>(number)) : "f" + std::to_string(number);
  } else if (key.is_none()) {
    out = "0";
  } else {
    return false;
  }
  return true;
}

}  // namespace

Value Value::undefined(std::string_view name) {
  return Value(Content(Undefined{std::make_shared<const std::string>(name)}));
}

const std::string& Value::undefined_name() const {
  static const std::string kNone;
  const auto& name = get<Undefined>().name;
  return name == nullptr ? kNone : *name;
}

Value Value::integer(int64_t value, bool from_outside) {
  Value out{Content(value)};
  out.from_outside_ = from_outside;
  return out;
}

Value Value::number(double value, bool from_outside) {
  Value out{Content(value)};
  out.from_outside_ = from_outside;
  return out;
}

Value Value::string(MarkedText text) {
  return Value(Content(std::make_shared<const MarkedText>(std::move(text))));
}

Value Value::sequence(List items, bool is_tuple) {
  uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth_);
  Value out(Content(Sequence{std::make_shared<const List>(std::move(items)), is_tuple}));
  out.depth_ = depth + 1;
  return out;
}

Value Value::dict(Dict members) {
  uint32_t depth = 0;
  for (const auto& [key, value] : members.entries()) depth = std::max(depth, value.depth_);
  Value out(Content(std::make_shared<const Dict>(std::move(members))));
  out.depth_ = depth + 1;
  return out;
}

Value Value::function(Callable call) {
  return Value(Content(Function{std::make_shared<const Callable>(std::move(call))}));
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  using Kind = nlohmann::ordered_json::value_t;
  const auto text = [](const std::string& value) {
    return string(MarkedText(is_valid_utf8(value) ? value : to_valid_utf8(value), true));
  };
  switch (json.type()) {
    case Kind::boolean:
      return boolean(json.get<bool>());
    case Kind::number_integer:
      return integer(json.get<int64_t>(), true);
    case Kind::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return number(json.get<double>(), true);
      return integer(json.get<int64_t>(), true);
    case Kind::number_float:
      return number(json.get<double>(), true);
    case Kind::string:
      return text(json.get_ref<const std::string&>());
    case Kind::array: {
      List items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Kind::object: {
      Dict members;
      for (const auto& [key, value] : json.items()) members.set(text(key), from_json(value));
      return dict(std::move(members));
    }
    default:
      return none();
  }
}

bool Value::truthy() const {
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_string()) return !as_text().empty();
  if (is_sequence()) return !as_list().empty();
  if (is_dict()) return as_dict().size() != 0;
  return is_namespace() || is_function();
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_tuple()) return "tuple";
  if (is_sequence()) return "list";
  if (is_dict()) return "dict";
  if (is_namespace()) return "namespace";
  return "function";
}

bool Value::same_as(const Value& other) const {
  if (content_.index() != other.content_.index()) return false;
  if (is_undefined() || is_none()) return true;
  if (is_bool()) return as_bool() == other.as_bool();
  if (is_int()) return as_int() == other.as_int();
  if (is_float()) return as_float() == other.as_float();
  if (is_string()) return as_text().text() == other.as_text().text();
  if (is_sequence()) return get<Sequence>().items == other.get<Sequence>().items;
  if (is_dict()) return get<Members>() == other.get<Members>();
  if (is_namespace()) return get<Namespace>().members == other.get<Namespace>().members;
  return get<Function>().call == other.get<Function>().call;
}

const Value* Dict::find(const Value& key) const {
  std::string id;
  if (!key_of(key, id)) return nullptr;
  const auto place = places_.find(id);
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto place = places_.find("s" + std::string(key));
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

bool Dict::set(const Value& key, Value value) {
  std::string id;
  if (!key_of(key, id)) return false;
  const auto [place, is_new] = places_.emplace(std::move(id), entries_.size());
  if (is_new) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[place->second].second = std::move(value);
  }
  return true;
}

void Dict::set(std::string_view key, Value value) {
  set(Value::string(key), std::move(value));
}

void Dict::clear() {
  entries_.clear();
  places_.clear();
}

}  // namespace tandem::text::jinja
