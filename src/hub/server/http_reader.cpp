// RequestReader over Beast's parser, the only place that sees Beast: no stream type of it is used.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "hub/server/http.h"

namespace tandem::hub {

namespace http = boost::beast::http;

struct RequestReader::Parser {
  http::request_parser<http::string_body> parser;
};

RequestReader::RequestReader() : parser_(std::make_unique<Parser>()) {
  parser_->parser.header_limit(kMaxHeaderBytes);
  // Checked against the announced length when the header ends, before limit_body() can be called.
  parser_->parser.body_limit(kMaxFileBytes);
}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

RequestReader::State RequestReader::bad(int status) {
  status_ = status;
  return State::kBad;
}

bool RequestReader::limit_body(uint64_t bytes) {
  const auto& fields = parser_->parser.get();
  if (fields.find(http::field::transfer_encoding) != fields.end()) {
    status_ = 411;
    return false;
  }
  if (body_bytes() > bytes) {
    status_ = 413;
    return false;
  }
  return true;
}

uint64_t RequestReader::body_bytes() const {
  const auto announced = parser_->parser.content_length();
  return announced ? *announced : 0;
}

bool RequestReader::expects_continue() const {
  return boost::beast::iequals(parser_->parser.get()[http::field::expect], "100-continue");
}

RequestReader::State RequestReader::feed(std::string_view bytes, size_t& used) {
  auto& parser = parser_->parser;
  used = 0;
  while (used < bytes.size() || parser.is_done()) {
    boost::beast::error_code error;
    if (!parser.is_done()) {
      const std::string_view rest = bytes.substr(used);
      used += parser.put(boost::asio::buffer(rest.data(), rest.size()), error);
      untouched_ = false;
      if (error == http::error::need_more) return State::kMore;
      if (error == http::error::header_limit) return bad(431);
      if (error == http::error::body_limit) return bad(413);
      if (error) return bad(400);
    }
    if (parser.is_header_done() && !header_seen_) {
      header_seen_ = true;
      const auto& message = parser.get();
      request_.method = std::string(message.method_string());
      const auto text = [&](http::field field) { return std::string(message[field]); };
      if (!parse_target(std::string_view(message.target().data(), message.target().size()),
                        request_)
               .ok() ||
          message.version() < 10 || message.version() > 11) {
        return bad(400);
      }
      request_.host = text(http::field::host);
      request_.authorization = text(http::field::authorization);
      request_.range = text(http::field::range);
      request_.if_none_match = text(http::field::if_none_match);
      request_.upgrade = text(http::field::upgrade);
      request_.keep_alive = message.keep_alive();
      return State::kHeader;
    }
    if (parser.is_done()) return State::kDone;
  }
  return State::kMore;
}

Request RequestReader::take() {
  request_.body = std::move(parser_->parser.get().body());
  return std::move(request_);
}

}  // namespace tandem::hub
