// Filters on lists and dicts.
#include <algorithm>
#include <array>
#include <optional>

#include "text/template/evaluator.h"
#include "text/template/python.h"
#include "text/template/text_ops.h"

namespace tandem::text::jinja {

namespace {

using Args = const Arguments&;

/// A value, or its attribute if one is named; strings without regard to case unless `exact`.
Value sort_key(Evaluator& e, const Value& item, const Value& attribute, bool exact) {
  Value key = item;
  if (attribute.is_string()) {
    key = e.path(item, attribute.as_text().text());
  } else if (attribute.is_int()) {
    key = e.item(item, attribute);
  }
  return key.is_string() && !exact ? Value::string(lower(key.as_text())) : key;
}

/// Stable; stops comparing once an error is noted.
void sort_by_keys(Evaluator& e, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  std::vector<size_t> order(keyed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // An own merge sort: std::sort may run astray when an error makes the order inconsistent.
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t at = begin; at < end; ++at) {
        bool take_right = left >= middle;
        if (left < middle && right < end) {
          const int order_of = e.compare(keyed[order[right]].first, keyed[order[left]].first);
          take_right = reverse ? order_of > 0 : order_of < 0;
        }
        merged[at] = order[take_right ? right++ : left++];
      }
    }
    order.swap(merged);
    if (e.failed()) return;
  }
  std::vector<std::pair<Value, Value>> sorted;
  sorted.reserve(keyed.size());
  for (const size_t at : order) sorted.push_back(std::move(keyed[at]));
  keyed = std::move(sorted);
}

Value filter_first(Evaluator& e, const Value& self, Args) {
  const auto items = e.iterate(self);
  return items->empty() ? Value::undefined("first item") : items->front();
}

Value filter_last(Evaluator& e, const Value& self, Args) {
  const auto items = e.iterate(self);
  return items->empty() ? Value::undefined("last item") : items->back();
}

Value filter_list(Evaluator& e, const Value& self, Args) {
  return e.list(*e.iterate(self));
}

Value filter_join(Evaluator& e, const Value& self, Args a) {
  const MarkedText separator = arg(a, 0).is_undefined() ? MarkedText() : to_text(e, arg(a, 0));
  const auto items = e.iterate(self);
  MarkedText out;
  bool first = true;
  for (const Value& item : *items) {
    if (!e.step()) return {};
    if (!first) out.append(separator);
    first = false;
    out.append(to_text(e, arg(a, 1).is_undefined() ? item : sort_key(e, item, arg(a, 1), true)));
    if (!e.allows(out.size() * 2)) return {};
  }
  return e.text(std::move(out));
}

Value filter_reverse(Evaluator& e, const Value& self, Args) {
  const auto items = e.iterate(self);
  if (!self.is_string()) return e.list(List(items->rbegin(), items->rend()));
  MarkedText out;
  for (auto item = items->rbegin(); item != items->rend(); ++item) out.append(item->as_text());
  return e.text(std::move(out));
}

Value filter_sort(Evaluator& e, const Value& self, Args a) {
  const bool exact = arg(a, 1).truthy();
  const auto items = e.iterate(self);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : *items) {
    // Several attributes, with commas between, make a tuple of keys.
    if (arg(a, 2).is_string() && arg(a, 2).as_text().text().find(',') != std::string::npos) {
      List keys;
      for (const MarkedText& name : split(arg(a, 2).as_text(), ",", -1, false)) {
        keys.push_back(sort_key(e, item, Value::string(name), exact));
      }
      keyed.emplace_back(Value::tuple(std::move(keys)), item);
    } else {
      keyed.emplace_back(sort_key(e, item, arg(a, 2), exact), item);
    }
    if (!e.step()) return {};
  }
  sort_by_keys(e, keyed, arg(a, 0).truthy());
  List out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return e.list(std::move(out));
}

Value filter_dictsort(Evaluator& e, const Value& self, Args a) {
  if (!self.is_dict()) return e.fail("dictsort of " + std::string(self.type_name()));
  const bool exact = arg(a, 0).truthy();
  const bool by_value = arg(a, 1).is_string() && arg(a, 1).as_text().text() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.as_dict().entries()) {
    keyed.emplace_back(sort_key(e, by_value ? value : key, {}, exact), e.tuple({key, value}));
  }
  sort_by_keys(e, keyed, arg(a, 2).truthy());
  List out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return e.list(std::move(out));
}

Value filter_unique(Evaluator& e, const Value& self, Args a) {
  List out;
  List keys;
  for (const auto items = e.iterate(self); const Value& item : *items) {
    Value key = sort_key(e, item, arg(a, 1), arg(a, 0).truthy());
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& other) { return e.equal(key, other); });
    if (e.failed()) return {};
    if (seen) continue;
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return e.list(std::move(out));
}

Value extreme(Evaluator& e, const Value& self, Args a, int sign) {
  std::optional<std::pair<Value, Value>> best;
  for (const auto items = e.iterate(self); const Value& item : *items) {
    Value key = sort_key(e, item, arg(a, 1), arg(a, 0).truthy());
    if (!best.has_value() || e.compare(key, best->first) * sign > 0) best.emplace(key, item);
    if (e.failed()) return {};
  }
  return best.has_value() ? best->second : Value::undefined("item of an empty list");
}
Value filter_min(Evaluator& e, const Value& self, Args a) {
  return extreme(e, self, a, -1);
}
Value filter_max(Evaluator& e, const Value& self, Args a) {
  return extreme(e, self, a, 1);
}

Value filter_sum(Evaluator& e, const Value& self, Args a) {
  Value total = arg(a, 1).is_undefined() ? Value::integer(0) : arg(a, 1);
  for (const auto items = e.iterate(self); const Value& item : *items) {
    total =
        e.binary("+", total, arg(a, 0).is_undefined() ? item : sort_key(e, item, arg(a, 0), true));
    if (e.failed()) return {};
  }
  return total;
}

// map, select and reject don't look into what is false, as in Jinja2: none has no items there.
Value or_empty(Evaluator& e, const Value& self) {
  return self.truthy() ? self : e.list({});
}

Value filter_map(Evaluator& e, const Value& value_or_none, Args a) {
  const Value self = or_empty(e, value_or_none);
  const auto items = e.iterate(self);
  List out;
  if (a.positional.empty()) {
    Value attribute;
    Value missing;
    for (const auto& [name, value] : a.named) {
      if (name == "attribute") {
        attribute = value;
      } else if (name == "default") {
        missing = value;
      } else {
        return e.fail("map was given an argument that it does not know");
      }
    }
    if (attribute.is_undefined()) return e.fail("map without a filter or an attribute");
    for (const Value& item : *items) {
      Value value = sort_key(e, item, attribute, true);
      if (!e.step()) return {};
      out.push_back(value.is_undefined() ? missing : value);
    }
    return e.list(std::move(out));
  }
  if (!arg(a, 0).is_string()) return e.fail("map's filter must be a name");
  Arguments rest = a;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : *items) {
    out.push_back(e.filter(arg(a, 0).as_text().text(), item, rest));
    if (!e.step()) return {};
  }
  return e.list(std::move(out));
}

/// select, reject and their attribute forms.
Value choose(Evaluator& e, const Value& self, Args a, bool by_attribute, bool wanted) {
  const size_t first = by_attribute ? 1 : 0;
  if (by_attribute && (a.positional.empty() || !(arg(a, 0).is_string() || arg(a, 0).is_int()))) {
    return e.fail("expected the name of an attribute");
  }
  const bool has_test = a.positional.size() > first;
  if (has_test && !arg(a, first).is_string()) return e.fail("a test must be a name");
  Arguments rest;
  rest.named = a.named;
  for (size_t i = first + 1; i < a.positional.size(); ++i) rest.positional.push_back(arg(a, i));
  List out;
  const Value given = or_empty(e, self);
  for (const auto items = e.iterate(given); const Value& item : *items) {
    const Value value = by_attribute ? sort_key(e, item, arg(a, 0), true) : item;
    const bool holds =
        has_test ? e.test(arg(a, first).as_text().text(), value, rest) : value.truthy();
    if (!e.step()) return {};
    if (holds == wanted) out.push_back(item);
  }
  return e.list(std::move(out));
}
Value filter_select(Evaluator& e, const Value& s, Args a) {
  return choose(e, s, a, false, true);
}
Value filter_reject(Evaluator& e, const Value& s, Args a) {
  return choose(e, s, a, false, false);
}
Value filter_selectattr(Evaluator& e, const Value& s, Args a) {
  return choose(e, s, a, true, true);
}
Value filter_rejectattr(Evaluator& e, const Value& s, Args a) {
  return choose(e, s, a, true, false);
}

Value filter_batch(Evaluator& e, const Value& self, Args a) {
  if (!arg(a, 0).is_int() || arg(a, 0).as_int() <= 0) return e.fail("batch needs a positive size");
  const auto size = static_cast<size_t>(arg(a, 0).as_int());
  List out;
  List batch;
  const auto items = e.iterate(self);
  for (const Value& item : *items) {
    batch.push_back(item);
    if (batch.size() < size) continue;
    out.push_back(e.list(std::exchange(batch, {})));
  }
  if (!batch.empty()) {
    if (!arg(a, 1).is_undefined()) {
      if (!e.allows((size - batch.size()) * sizeof(Value))) return {};
      batch.resize(size, arg(a, 1));
    }
    out.push_back(e.list(std::move(batch)));
  }
  return e.list(std::move(out));
}

Value filter_groupby(Evaluator& e, const Value& self, Args a) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto items = e.iterate(self); const Value& item : *items) {
    Value key = sort_key(e, item, arg(a, 0), true);
    if (!e.step()) return {};
    keyed.emplace_back(key.is_undefined() ? arg(a, 1) : key, item);
  }
  sort_by_keys(e, keyed, false);
  List out;
  for (size_t i = 0; i < keyed.size() && !e.failed();) {
    const Value key = keyed[i].first;
    List group;
    for (; i < keyed.size() && e.equal(keyed[i].first, key); ++i) group.push_back(keyed[i].second);
    if (e.failed()) return {};
    out.push_back(e.tuple({key, e.list(std::move(group))}));
  }
  return e.list(std::move(out));
}

Value filter_items(Evaluator& e, const Value& self, Args) {
  if (self.is_undefined()) return e.list({});
  if (!self.is_dict()) return e.fail("items of " + std::string(self.type_name()));
  List out;
  for (const auto& [key, value] : self.as_dict().entries()) out.push_back(e.tuple({key, value}));
  return e.list(std::move(out));
}

Value filter_attr(Evaluator& e, const Value& self, Args a) {
  if (!arg(a, 0).is_string()) return e.fail("attr needs a name");
  return e.attribute(self, arg(a, 0).as_text().text());
}

constexpr std::array kFilters = {
    Builtin{"attr", filter_attr, "name"},
    Builtin{"batch", filter_batch, "linecount,fill_with"},
    Builtin{"dictsort", filter_dictsort, "case_sensitive,by,reverse"},
    Builtin{"first", filter_first, ""},
    Builtin{"groupby", filter_groupby, "attribute,default"},
    Builtin{"items", filter_items, ""},
    Builtin{"join", filter_join, "d,attribute"},
    Builtin{"last", filter_last, ""},
    Builtin{"list", filter_list, ""},
    Builtin{"map", filter_map, "*"},
    Builtin{"max", filter_max, "case_sensitive,attribute"},
    Builtin{"min", filter_min, "case_sensitive,attribute"},
    Builtin{"reject", filter_reject, "*"},
    Builtin{"rejectattr", filter_rejectattr, "*"},
    Builtin{"reverse", filter_reverse, ""},
    Builtin{"select", filter_select, "*"},
    Builtin{"selectattr", filter_selectattr, "*"},
    Builtin{"sort", filter_sort, "reverse,case_sensitive,attribute"},
    Builtin{"sum", filter_sum, "attribute,start"},
    Builtin{"unique", filter_unique, "case_sensitive,attribute"},
};

}  // namespace

const Builtin* find_list_filter(std::string_view name) {
  for (const Builtin& builtin : kFilters) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace tandem::text::jinja
