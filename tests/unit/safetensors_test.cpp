#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "sparsemla/error.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  /// A file with this header text and this many bytes of data.
  std::string write(const std::string& header, std::size_t data_bytes) {
    return write_raw(prefix(header.size()) + header + std::string(data_bytes, 'x'));
  }
  std::string write_raw(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  static std::string prefix(std::uint64_t n) {
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>(n >> (8 * i));
    return out;
  }
  /// The text of the IoError that opening (and reading all tensors) raises.
  static std::string error_of(const std::string& path) {
    try {
      const SafetensorsFile file(path);
      for (const auto& [name, entry] : file.tensors()) file.read(name);
    } catch (const IoError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path));
      return e.what();
    }
    return "";
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  std::string path_ =
      ::testing::TempDir() + "smla_" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";
};

HostTensor filled(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor t(dtype, std::move(shape));
  auto* bytes = static_cast<unsigned char*>(t.data());
  for (std::size_t i = 0; i < t.bytes(); ++i)
    bytes[i] = static_cast<unsigned char>(dtype == DType::kBool ? i % 2 : i * 7 + 1);
  return t;
}

TEST_F(Safetensors, RoundTripOfEveryDtype) {
  std::vector<std::pair<std::string, HostTensor>> tensors;
  for (const DType dtype :
       {DType::kBool, DType::kU8, DType::kI32, DType::kI64, DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3}) {
    tensors.emplace_back("t." + std::string(name_of(dtype)), filled(dtype, {3, 5}));
  }
  tensors.emplace_back("scalar \"quoted\" \n", filled(DType::kF32, {}));
  tensors.emplace_back("empty", filled(DType::kBF16, {0, 7}));
  tensors.emplace_back("five", filled(DType::kU8, {1, 2, 1, 3, 1}));
  std::vector<std::pair<std::string, const HostTensor*>> list;
  for (const auto& [name, tensor] : tensors) list.emplace_back(name, &tensor);
  write_safetensors(path_, {{"format", "test"}, {"params", "{\"a\": 1}"}}, list);

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata().at("params"), "{\"a\": 1}");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const HostTensor back = file.read(name);
    EXPECT_EQ(back.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(back.shape(), tensor.shape()) << name;
    EXPECT_EQ(std::memcmp(back.data(), tensor.data(), tensor.bytes()), 0) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back.data()) % 64, 0U) << name;
  }
  EXPECT_THROW(file.read("absent"), InvalidArgument);
}

TEST_F(Safetensors, WriterRefusesRepeatedNames) {
  const HostTensor t = filled(DType::kU8, {1});
  EXPECT_THROW(write_safetensors(path_, {}, {{"a", &t}, {"a", &t}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, {}, {{"__metadata__", &t}}), InvalidArgument);
  EXPECT_THROW(write_safetensors("/no/such/folder/x", {}, {{"a", &t}}), IoError);
}

TEST_F(Safetensors, ReadsTheGoldenCases) {
  const SafetensorsFile file(SMLA_SOURCE_DIR "/tests/golden/layer_c4a.safetensors");
  EXPECT_EQ(file.metadata().at("op"), "attention_layer");
  EXPECT_EQ(file.read("in.hidden").shape(), (std::vector<std::int64_t>{263, 256}));
  EXPECT_EQ(file.read("out.topk").dtype(), DType::kI32);
}

TEST_F(Safetensors, MissingFileAndFolder) {
  EXPECT_THROW(SafetensorsFile("/no/such/file"), IoError);
  EXPECT_THROW(SafetensorsFile{testing::TempDir()}, IoError);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsFile{path_}, IoError);  // and does not wait for a writer
}

TEST_F(Safetensors, EveryTruncationIsAnError) {
  const HostTensor a = filled(DType::kF32, {2, 3});
  const HostTensor b = filled(DType::kBF16, {4});
  write_safetensors(path_, {{"k", "v"}}, {{"a", &a}, {"b", &b}});
  std::ifstream in(path_, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(error_of(path_), "");
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_NE(error_of(write_raw(whole.substr(0, n))), "") << n;
  EXPECT_THAT(error_of(write_raw(whole + "x")), HasSubstr("after the last tensor"));
}

// Any single byte changed: an error or a readable file, never a crash.
TEST_F(Safetensors, EveryFlippedHeaderByteIsSurvived) {
  const HostTensor a = filled(DType::kF32, {2, 3});
  write_safetensors(path_, {{"k", "v"}}, {{"a", &a}});
  std::ifstream in(path_, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (std::size_t n = 0; n < whole.size() - a.bytes(); ++n) {
    for (const int flip : {1, 2, 16, 128, 255}) {
      std::string broken = whole;
      broken[n] = static_cast<char>(broken[n] ^ flip);
      write_raw(broken);
      try {
        const SafetensorsFile file(path_);
        for (const auto& [name, entry] : file.tensors()) file.read(name);
      } catch (const Error&) {
      }
    }
  }
}

TEST_F(Safetensors, HeaderSizeIsCapped) {
  EXPECT_THAT(error_of(write_raw(prefix(~0ULL) + "{}")), HasSubstr("header size"));
  EXPECT_THAT(error_of(write_raw(prefix(3) + "{}")), HasSubstr("header size"));
  EXPECT_THAT(error_of(write_raw(prefix(0))), HasSubstr("header"));
}

TEST_F(Safetensors, HostileHeadersNameTheTensor) {
  const auto tensor = [](const std::string& body) {
    return "{\"good\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"evil\":{" + body + "}}";
  };
  struct Case {
    const char* body;
    const char* says;
  };
  for (const Case& c :
       {Case{R"("dtype":"F32","shape":[1],"data_offsets":[4,9])", "data_offsets"},     // size is not the shape's
        Case{R"("dtype":"F32","shape":[1],"data_offsets":[2,6])", "overlaps"},         // overlap
        Case{R"("dtype":"U8","shape":[2],"data_offsets":[6,8])", "hole"},              // hole
        Case{R"("dtype":"U8","shape":[4],"data_offsets":[8,4])", "data_offsets"},      // backwards
        Case{R"("dtype":"U8","shape":[4],"data_offsets":[4,8,9])", "data_offsets"},    // three offsets
        Case{R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])", "data_offsets[0]"},  // negative
        Case{R"("dtype":"U8","shape":[1099511627776],"data_offsets":[4,1099511627780])", "within"},  // outside the file
        Case{R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[4,8])", "63 bits"},    // overflow
        Case{R"("dtype":"U8","shape":[-4],"data_offsets":[4,8])", "shape[0]"},     // negative dimension
        Case{R"("dtype":"U8","shape":[1e300],"data_offsets":[4,8])", "shape[0]"},  // absurd dimension
        Case{R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4],"data_offsets":[4,8])", "shape"},  // rank 17
        Case{R"("dtype":"U8","shape":4,"data_offsets":[4,8])", "shape"},                                    // no list
        Case{R"("dtype":"Q7","shape":[4],"data_offsets":[4,8])", "Q7"},  // unknown dtype
        Case{R"("dtype":7,"shape":[4],"data_offsets":[4,8])", "dtype"},  // dtype is no string
        Case{R"("shape":[4],"data_offsets":[4,8])", "dtype"},            // dtype missing
        Case{R"("dtype":"U8","data_offsets":[4,8])", "shape"},           // shape missing
        Case{R"("dtype":"U8","shape":[4])", "data_offsets"}}) {          // offsets missing
    EXPECT_THAT(error_of(write(tensor(c.body), 4 + 4)), AllOf(HasSubstr("tensor evil"), HasSubstr(c.says))) << c.body;
  }
  EXPECT_THAT(
      error_of(write(
          R"({"evil":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"evil":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          8)),
      AllOf(HasSubstr("evil"), HasSubstr("twice")));
  EXPECT_THAT(error_of(write(R"({"evil":3})", 0)), HasSubstr("tensor evil"));
  EXPECT_THAT(error_of(write(R"({"__metadata__":{"k":3}})", 0)), AllOf(HasSubstr("__metadata__"), HasSubstr("k")));
  EXPECT_THAT(error_of(write(R"([1,2])", 0)), HasSubstr("header"));
  EXPECT_THAT(error_of(write(std::string(10000, '['), 0)), HasSubstr("nesting"));
}

TEST_F(Safetensors, UnreadableDtypesAreUnsupportedOnlyWhenRead) {
  for (const char* dtype : {"I8", "F8_E5M2"}) {
    const SafetensorsFile file(
        write(std::string(R"({"t":{"dtype":")") + dtype + R"(","shape":[4],"data_offsets":[0,4]}})", 4));
    try {
      file.read("t");
      FAIL() << dtype;
    } catch (const Unsupported& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("tensor t"), HasSubstr(dtype), HasSubstr("F8_E4M3")));
    }
  }
  const SafetensorsFile file(write(R"({"t":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}})", 4));
  EXPECT_EQ(file.read("t").dtype(), DType::kU8);
}

TEST_F(Safetensors, BoolsAreZeroOrOne) {
  EXPECT_THAT(error_of(write(R"({"t":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})", 4)),
              AllOf(HasSubstr("tensor t"), HasSubstr("BOOL")));
}

TEST_F(Safetensors, AFileThatShrinksIsAnIoError) {
  const HostTensor a = filled(DType::kF32, {1000});
  write_safetensors(path_, {}, {{"a", &a}});
  const SafetensorsFile file(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 500), 0);
  try {
    file.read("a");
    FAIL();
  } catch (const IoError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("tensor a"), HasSubstr("shrank")));
  }
}

TEST_F(Safetensors, AFileThatShrinksWhileItIsReadIsAnIoError) {
  const HostTensor a = filled(DType::kF32, {1 << 18});
  write_safetensors(path_, {}, {{"a", &a}});
  const off_t whole = static_cast<off_t>(std::filesystem::file_size(path_));
  const SafetensorsFile file(path_);
  std::atomic<bool> done{false};
  std::thread other([&] {  // cuts the file and makes it long again, all the time
    while (!done) {
      ASSERT_EQ(::truncate(path_.c_str(), whole / 3), 0);
      ASSERT_EQ(::truncate(path_.c_str(), whole), 0);
    }
  });
  int errors = 0;
  for (int i = 0; i < 20000 && errors < 3; ++i) {
    try {
      EXPECT_EQ(file.read("a").bytes(), a.bytes());
    } catch (const IoError& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("tensor a"), HasSubstr("shrank")));
      ++errors;
    }
  }
  done = true;
  other.join();
  EXPECT_EQ(errors, 3) << "no read met the short file";
}

TEST(HostTensor, SizesAreChecked) {
  EXPECT_THROW(HostTensor(DType::kF32, {-1}), InvalidArgument);
  EXPECT_THROW(HostTensor(DType::kF64, {std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
  HostTensor t(DType::kBF16, {2, 3});
  EXPECT_EQ(t.view().numel(), 6);
  EXPECT_EQ(t.view().stride[0], 3);
  EXPECT_THROW(t.as<float>(), InvalidArgument);
  EXPECT_TRUE(HostTensor().view().absent());
  EXPECT_FALSE(HostTensor(DType::kF32, {0, 4}).view().absent());
  HostTensor five(DType::kU8, {1, 1, 1, 1, 2});
  EXPECT_THROW(five.view(), InvalidArgument);
}

}  // namespace
}  // namespace smla
