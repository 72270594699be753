// Errors as values. Every operation that can fail for a reason outside the program returns a
// Result.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tandem {

/// What kind of thing went wrong; the message says the rest.
enum class ErrorKind {
  kInvalid,      ///< input that breaks its format: a file, frame, request, template or flag
  kUnsupported,  ///< well formed, but something Tandem does not do; the message names it
  kNotFound,     ///< a file, tensor, model or peer that is not there
  kIo,           ///< the operating system refused
  kMemory,       ///< more memory than there is, or than was lent
  kPeer,         ///< another process died, hung, refused or answered nonsense
  kCancelled,    ///< the caller asked to stop
};

/// Short lower-case name of a kind, for logs and JSON.
std::string_view name(ErrorKind kind);

/// One failure. `message` is one line that names what was expected and what was found, with the
/// file, tensor or peer. Safe to show to a user.
struct Error {
  ErrorKind kind = ErrorKind::kInvalid;
  std::string message;

  /// The same error with "context: " before the message.
  [[nodiscard]] Error in(std::string_view context) const {
    return {kind, std::string(context) + ": " + message};
  }
};

inline Error invalid(std::string message) {
  return {ErrorKind::kInvalid, std::move(message)};
}
inline Error unsupported(std::string message) {
  return {ErrorKind::kUnsupported, std::move(message)};
}

/// A value or an Error. Reading the value of a failed Result ends the process: check `ok()` first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return *get(); }
  const T& value() const& { return *const_cast<Result*>(this)->get(); }
  T&& value() && { return std::move(*get()); }
  T& operator*() & { return *get(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*get()); }
  T* operator->() { return get(); }
  const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const { return *std::get_if<1>(&content_); }

 private:
  T* get() {
    T* value = std::get_if<0>(&content_);
    if (value == nullptr) std::abort();
    return value;
  }
  std::variant<T, Error> content_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT

  [[nodiscard]] bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
  bool failed_ = false;
};

using Status = Result<void>;

}  // namespace tandem

/// `TANDEM_TRY(expression);` returns the error of a failed Status or Result to the caller.
#define TANDEM_TRY(expression)                                    \
  do {                                                            \
    if (auto tandem_result = (expression); !tandem_result.ok()) { \
      return tandem_result.error();                               \
    }                                                             \
  } while (false)

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)
/// `TANDEM_ASSIGN(auto x, expression);` declares x from a Result's value or returns its error.
#define TANDEM_ASSIGN(declaration, expression)                 \
  auto TANDEM_CONCAT(tandem_result_, __LINE__) = (expression); \
  if (!TANDEM_CONCAT(tandem_result_, __LINE__).ok()) {         \
    return TANDEM_CONCAT(tandem_result_, __LINE__).error();    \
  }                                                            \
  declaration = std::move(*TANDEM_CONCAT(tandem_result_, __LINE__))
