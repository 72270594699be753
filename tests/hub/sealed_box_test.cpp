// Boxes that one device alone opens.
#include "hub/sealed_box.h"

#include <gtest/gtest.h>

#include "hub/secret.h"

namespace tandem::hub {
namespace {

TEST(SealedBox, OnlyTheDeviceOpensIt) {
  const Identity device = Identity::make();
  const Identity other = Identity::make();
  for (const std::string& text : {std::string(), std::string("key"), random_bytes(4096)}) {
    const auto box = seal_box(device.public_key(), text);
    ASSERT_TRUE(box.ok());
    EXPECT_EQ(box->size(), text.size() + 48);
    const auto opened = open_box(device, *box);
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ(*opened, text);
    EXPECT_FALSE(open_box(other, *box).ok());
    EXPECT_NE(*seal_box(device.public_key(), text), *box) << "a key of its own for each box";
  }
}

TEST(SealedBox, EveryChangeIsSeen) {
  const Identity device = Identity::make();
  const std::string box = *seal_box(device.public_key(), "the room's key..");
  for (size_t i = 0; i < box.size(); ++i) {
    std::string changed = box;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(open_box(device, changed).ok()) << i;
  }
  for (size_t length = 0; length < box.size(); ++length) {
    EXPECT_FALSE(open_box(device, box.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(open_box(device, box + "x").ok());
  EXPECT_FALSE(open_box(device, std::string(5000, 'x')).ok());
}

TEST(SealedBox, NotEveryBytesAreAKey) {
  EXPECT_FALSE(seal_box("short", "text").ok());
  // y = 1 has no u, and y = -1 is u = 0, of low order.
  EXPECT_FALSE(seal_box(std::string(1, '\1') + std::string(31, '\0'), "text").ok());
  std::string minus_one(32, '\xff');
  minus_one.front() = '\xec';
  minus_one.back() = '\x7f';
  EXPECT_FALSE(seal_box(minus_one, "text").ok());
  EXPECT_FALSE(seal_box(Identity::make().public_key(), std::string(4097, 'x')).ok());
}

TEST(SealedBox, BothHalvesConvertAlike) {
  // RFC 8032's first test key.
  const auto bytes = [](const std::string& text) {
    std::string result;
    for (size_t i = 0; i < text.size(); i += 2) {
      result += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    }
    return result;
  };
  const Identity device = Identity::from_seed(
      bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"));
  ASSERT_EQ(device.public_key(),
            bytes("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"));
  const auto box = seal_box(device.public_key(), "text");
  ASSERT_TRUE(box.ok());
  EXPECT_EQ(*open_box(device, *box), "text");
}

}  // namespace
}  // namespace tandem::hub
