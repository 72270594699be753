// What an identity is made of: OpenSSL's objects, for the files that use OpenSSL.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

#include "wire/tls.h"

namespace tandem::wire {

struct Identity::Parts {
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key{nullptr, &EVP_PKEY_free};
  std::unique_ptr<X509, decltype(&X509_free)> certificate{nullptr, &X509_free};
};

}  // namespace tandem::wire
