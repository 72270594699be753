// Rotary frequencies: the formulas of transformers' rope types, in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "model/rope_config.h"

namespace tandem::model {
namespace {

constexpr uint32_t kHeadDim = 64;

ModelConfig config_of(RopeScaling scaling) {
  ModelConfig config;
  config.head_dim = kHeadDim;
  config.context = 8192;
  config.rope.theta = 10000.0;
  config.rope.scaling = scaling;
  config.rope.factor = 4.0;
  config.rope.original_context = 2048;
  return config;
}

// Compares the rotations of a position with cos and sin of position * frequency.
void expect_frequencies(const ModelConfig& config, uint32_t position,
                        const std::vector<double>& frequencies) {
  const Rope rope(config.rope, config.head_dim);
  std::vector<arithmetic::Rotation> rotations;
  rope.rotations(position, 1, rotations);
  ASSERT_EQ(rotations.size(), frequencies.size());
  for (size_t i = 0; i < rotations.size(); ++i) {
    const double angle = frequencies[i] * position;
    EXPECT_NEAR(rotations[i].cosine, std::cos(angle) * 32768, 0.7) << "pair " << i;
    EXPECT_NEAR(rotations[i].sine, std::sin(angle) * 32768, 0.7) << "pair " << i;
  }
}

std::vector<double> plain(double theta) {
  std::vector<double> frequencies;
  for (uint32_t i = 0; i < kHeadDim / 2; ++i) {
    frequencies.push_back(std::pow(theta, -2.0 * i / kHeadDim));
  }
  return frequencies;
}

TEST(Rope, RotatesByThetasPowers) {
  for (const uint32_t position : {0U, 1U, 7U, 513U, 8191U, 262143U}) {
    expect_frequencies(config_of(RopeScaling::kNone), position, plain(10000.0));
  }
}

TEST(Rope, LinearDividesEveryFrequency) {
  auto frequencies = plain(10000.0);
  for (double& f : frequencies) f /= 4.0;
  expect_frequencies(config_of(RopeScaling::kLinear), 5000, frequencies);
}

TEST(Rope, DynamicStretchesTheBaseOfPositionsPastTheOriginalContext) {
  expect_frequencies(config_of(RopeScaling::kDynamic), 2047, plain(10000.0));
  const double stretch = 4.0 * 5001 / 2048 - 3.0;
  const double theta = 10000.0 * std::pow(stretch, 64.0 / 62.0);
  expect_frequencies(config_of(RopeScaling::kDynamic), 5000, plain(theta));
}

TEST(Rope, ADynamicRotationDoesNotDependOnThePassItIsIn) {
  const Rope rope(config_of(RopeScaling::kDynamic).rope, kHeadDim);
  std::vector<arithmetic::Rotation> whole;
  std::vector<arithmetic::Rotation> parts;
  rope.rotations(2000, 100, whole);
  for (uint32_t t = 0; t < 100; ++t) rope.rotations(2000 + t, 1, parts);
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].cosine, parts[i].cosine);
    EXPECT_EQ(whole[i].sine, parts[i].sine);
  }
}

TEST(Rope, Llama3KeepsShortWavesAndDividesLongOnes) {
  ModelConfig config = config_of(RopeScaling::kLlama3);
  config.rope.low_freq_factor = 1.0;
  config.rope.high_freq_factor = 4.0;
  auto frequencies = plain(10000.0);
  for (double& f : frequencies) {
    const double wavelength = 2 * M_PI / f;
    if (wavelength > 2048.0) {
      f /= 4.0;
    } else if (wavelength > 512.0) {
      const double smooth = (2048.0 / wavelength - 1.0) / 3.0;
      f = (1 - smooth) * f / 4.0 + smooth * f;
    }
  }
  expect_frequencies(config, 3000, frequencies);
}

TEST(Rope, YarnBlendsByRotationsAndScalesAttention) {
  ModelConfig config = config_of(RopeScaling::kYarn);
  config.rope.attention_factor = 0.1 * std::log(4.0) + 1.0;
  const auto dim = [](double rotations) {
    return 64.0 * std::log(2048.0 / (rotations * 2 * M_PI)) / (2 * std::log(10000.0));
  };
  const double low = std::floor(dim(32.0));
  const double high = std::ceil(dim(1.0));
  auto frequencies = plain(10000.0);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / 4.0 * ramp + frequencies[i] * (1 - ramp);
  }
  expect_frequencies(config, 6000, frequencies);
  EXPECT_NEAR(Rope(config.rope, kHeadDim).score_factor(), std::pow(0.1 * std::log(4.0) + 1.0, 2),
              1e-12);
}

TEST(Rope, PowersAndLogarithmsAgreeWithTheMathLibrary) {
  for (const double base : {1.5, 10000.0, 500000.0, 1e6, 1e12}) {
    EXPECT_NEAR(arithmetic::logarithm(base), std::log(base), 1e-13 * std::log(base));
    for (int step = 0; step <= 40; ++step) {
      const double exponent = step * 0.03125;
      const double exact = std::pow(base, -exponent);
      EXPECT_NEAR(arithmetic::inverse_power(base, exponent), exact, 1e-12 * exact);
    }
  }
}

}  // namespace
}  // namespace tandem::model
