// The values that a chat template computes with. They mirror Python's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "text/marked_text.h"

namespace tandem::text::jinja {

class Value;
class Dict;
class Evaluator;
struct Arguments;

using List = std::vector<Value>;
/// Something that can be called: a macro, a method bound to its object, a function.
using Callable = std::function<Value(Evaluator&, const Arguments&)>;

/// A value. Cheap to copy: what it holds is shared and, but for namespaces, never changed.
class Value {
 public:
  struct Undefined {
    std::shared_ptr<const std::string> name;  ///< what was looked up in vain, for messages
  };
  struct None {};
  struct Sequence {
    std::shared_ptr<const List> items;
    bool is_tuple;
  };
  struct Namespace {
    std::shared_ptr<Dict> members;
  };
  struct Function {
    std::shared_ptr<const Callable> call;
  };

  Value() : content_(Undefined{}) {}
  static Value undefined(std::string_view name);
  static Value none() { return Value(Content(None{})); }
  static Value boolean(bool value) { return Value(Content(value)); }
  static Value integer(int64_t value, bool from_outside = false);
  static Value number(double value, bool from_outside = false);
  static Value string(MarkedText text);
  static Value string(std::string_view text) {
    return string(MarkedText(std::string(text), false));
  }
  static Value list(List items) { return sequence(std::move(items), false); }
  static Value tuple(List items) { return sequence(std::move(items), true); }
  static Value dict(Dict members);
  static Value name_space(std::shared_ptr<Dict> members) {
    return Value(Content(Namespace{std::move(members)}));
  }
  static Value function(Callable call);
  /// A JSON value; every string and number in it counts as text from outside.
  static Value from_json(const nlohmann::ordered_json& json);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(content_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(content_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(content_); }
  [[nodiscard]] bool is_int() const { return std::holds_alternative<int64_t>(content_); }
  [[nodiscard]] bool is_float() const { return std::holds_alternative<double>(content_); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<Text>(content_); }
  [[nodiscard]] bool is_sequence() const { return std::holds_alternative<Sequence>(content_); }
  [[nodiscard]] bool is_tuple() const { return is_sequence() && get<Sequence>().is_tuple; }
  [[nodiscard]] bool is_dict() const { return std::holds_alternative<Members>(content_); }
  [[nodiscard]] bool is_namespace() const { return std::holds_alternative<Namespace>(content_); }
  [[nodiscard]] bool is_function() const { return std::holds_alternative<Function>(content_); }
  /// Integers, floats and, as in Python, booleans.
  [[nodiscard]] bool is_number() const { return is_bool() || is_int() || is_float(); }

  // Each of these may be called only on a value of its type.
  [[nodiscard]] bool as_bool() const { return get<bool>(); }
  [[nodiscard]] const MarkedText& as_text() const { return *get<Text>(); }
  [[nodiscard]] const List& as_list() const { return *get<Sequence>().items; }
  [[nodiscard]] const std::shared_ptr<const List>& list_pointer() const {
    return get<Sequence>().items;
  }
  [[nodiscard]] const Dict& as_dict() const { return *get<Members>(); }
  [[nodiscard]] Dict& as_namespace() const { return *get<Namespace>().members; }
  [[nodiscard]] const Callable& as_function() const { return *get<Function>().call; }
  [[nodiscard]] const std::string& undefined_name() const;
  /// An integer or a boolean as an integer.
  [[nodiscard]] int64_t as_int() const { return is_bool() ? as_bool() : get<int64_t>(); }
  /// Any number as a float.
  [[nodiscard]] double as_float() const {
    return is_float() ? get<double>() : static_cast<double>(as_int());
  }

  /// A number that was computed from one in a message.
  [[nodiscard]] bool from_outside() const { return from_outside_; }
  [[nodiscard]] bool truthy() const;
  /// Python's name of the type.
  [[nodiscard]] std::string_view type_name() const;
  /// How deep lists and dicts are nested in each other; 0 for other values.
  [[nodiscard]] uint32_t depth() const { return depth_; }
  /// The same object in Python's sense of `is`, as far as that is defined.
  [[nodiscard]] bool same_as(const Value& other) const;

 private:
  using Text = std::shared_ptr<const MarkedText>;
  using Members = std::shared_ptr<const Dict>;
  using Content = std::variant<Undefined, None, bool, int64_t, double, Text, Sequence, Members,
                               Namespace, Function>;
  explicit Value(Content content) : content_(std::move(content)) {}
  static Value sequence(List items, bool is_tuple);
  template <typename T>
  [[nodiscard]] const T& get() const {
    return *std::get_if<T>(&content_);
  }

  Content content_;
  uint32_t depth_ = 0;
  bool from_outside_ = false;
};

/// A dictionary in order of insertion. Keys are strings, numbers, booleans or None.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  /// The value under a key, or null.
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// False if the key is of a type that cannot be one.
  bool set(const Value& key, Value value);
  void set(std::string_view key, Value value);
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  void clear();

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> places_;
};

/// What a call was given.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Positional argument `at`, which there is.
inline const Value& arg(const Arguments& arguments, size_t at) {
  return arguments.positional[at];
}

}  // namespace tandem::text::jinja
