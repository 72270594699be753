// Functions that every template can call.
#include <array>
#include <ctime>

#include "text/template/evaluator.h"
#include "text/template/python.h"

namespace tandem::text::jinja {

namespace {

using Args = const Arguments&;

constexpr uint64_t kMaxRange = 100'000;  // the limit of Jinja's own sandbox

Value range(Evaluator& e, const Value&, Args a) {
  if (a.positional.empty() || a.positional.size() > 3 || !a.named.empty()) {
    return e.fail("range takes one to three integers");
  }
  for (const Value& value : a.positional) {
    if (!value.is_int() && !value.is_bool()) {
      return e.fail("range takes integers, found " + std::string(value.type_name()));
    }
  }
  const bool one = a.positional.size() == 1;
  const int64_t begin = one ? 0 : a.positional[0].as_int();
  const int64_t end = a.positional[one ? 0 : 1].as_int();
  const int64_t step = a.positional.size() == 3 ? a.positional[2].as_int() : 1;
  if (step == 0) return e.fail("range's step must not be zero");
  bool outside = false;
  for (const Value& value : a.positional) outside |= value.from_outside();
  List items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() >= kMaxRange) {
      return e.fail("range of more than " + std::to_string(kMaxRange) + " numbers");
    }
    items.push_back(Value::integer(i, outside));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return e.list(std::move(items));
}

/// Members from a dict or pairs given first, then from named arguments.
bool collect(Evaluator& e, Args a, Dict& members) {
  for (const Value& given : a.positional) {
    if (given.is_dict()) {
      for (const auto& [key, value] : given.as_dict().entries()) members.set(key, value);
      continue;
    }
    for (const auto items = e.iterate(given); const Value& pair : *items) {
      if (!pair.is_sequence() || pair.as_list().size() != 2 ||
          !members.set(pair.as_list()[0], pair.as_list()[1])) {
        e.fail("expected pairs of key and value");
        return false;
      }
    }
  }
  for (const auto& [name, value] : a.named) members.set(name, value);
  return !e.failed();
}

Value make_dict(Evaluator& e, const Value&, Args a) {
  Dict members;
  return collect(e, a, members) ? e.dict(std::move(members)) : Value();
}

Value make_namespace(Evaluator& e, const Value&, Args a) {
  Dict members;
  return collect(e, a, members) ? e.name_space(std::move(members)) : Value();
}

Value raise_exception(Evaluator& e, const Value&, Args a) {
  return e.fail("the template refuses: " + to_text(e, a.positional[0]).text().substr(0, 2000));
}

Value strftime_now(Evaluator& e, const Value&, Args a) {
  const std::string format = to_text(e, a.positional[0]).text();
  if (format.empty()) return e.text("");
  if (format.size() > 200) return e.fail("strftime_now's format is longer than 200 bytes");
  const std::time_t now = std::chrono::system_clock::to_time_t(e.now());
  std::tm parts{};
  if (gmtime_r(&now, &parts) == nullptr) return e.fail("the time cannot be shown");
  // A letter more tells an empty result from one that does not fit.
  char buffer[1024];
  const size_t size = std::strftime(buffer, sizeof(buffer), (format + ".").c_str(), &parts);
  if (size == 0) return e.fail("strftime_now's result is too long");
  return e.text(std::string_view(buffer, size - 1));
}

constexpr std::array kGlobals = {
    Builtin{"dict", make_dict, "*"},
    Builtin{"namespace", make_namespace, "*"},
    Builtin{"raise_exception", raise_exception, "message"},
    Builtin{"range", range, "*"},
    Builtin{"strftime_now", strftime_now, "format"},
};

}  // namespace

const Builtin* find_global(std::string_view name) {
  for (const Builtin& builtin : kGlobals) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace tandem::text::jinja
