#include "crossdock/sys/file_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "crossdock/sys/unique_fd.h"

namespace crossdock {
namespace {

namespace fs = std::filesystem;

class FileCacheTest : public ::testing::Test {
 protected:
  ~FileCacheTest() override { fs::remove_all(directory_); }

  Status write(const FileCache& cache, const std::string& name, const std::string& content) {
    const auto bytes = std::as_bytes(std::span(content));
    const std::span<const std::byte> parts[] = {bytes.first(bytes.size() / 2),
                                                bytes.subspan(bytes.size() / 2)};
    return cache.write(name, parts);
  }
  std::string read(const FileCache& cache, const std::string& name) {
    auto file = cache.open(name);
    if (!file.ok()) return file.status().to_string();
    const auto bytes = file.value().bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  size_t num_files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  // How a process that writes `size` bytes ends when no file may have more than `size_max`.
  int status_of_writer(size_t size, size_t size_max, bool dies) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit{size_max, size_max};
      setrlimit(RLIMIT_FSIZE, &limit);
      if (!dies) signal(SIGXFSZ, SIG_IGN);
      const Status status = write(cache_, "a.bin", std::string(size, 'x'));
      _exit(static_cast<int>(status.code()));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  static fs::path make_directory() {
    std::string pattern = (fs::temp_directory_path() / "crossdock-XXXXXX").string();
    return mkdtemp(pattern.data());
  }

  const fs::path directory_ = make_directory();
  const FileCache cache_{directory_ / "made" / "here", 1 << 20};
};

TEST_F(FileCacheTest, WhatIsWrittenIsRead) {
  EXPECT_EQ(cache_.open("a.bin").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write(cache_, "a.bin", "first").ok());
  EXPECT_EQ(read(cache_, "a.bin"), "first");
  auto held = cache_.open("a.bin");
  ASSERT_TRUE(write(cache_, "a.bin", "the second").ok());
  EXPECT_EQ(read(cache_, "a.bin"), "the second");
  EXPECT_EQ(held.value().bytes().size(), 5u);  // whoever reads keeps what it opened
}

TEST_F(FileCacheTest, TheLeastLatelyUsedMakeRoom) {
  const FileCache cache(directory_, 250);
  const std::string content(100, 'x');
  std::ofstream(directory_ / "foreign.txt") << std::string(1000, 'y');
  ASSERT_TRUE(write(cache, "a.bin", content).ok());
  ASSERT_TRUE(write(cache, "b.bin", content).ok());
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(directory_ / "a.bin", now - std::chrono::hours(2));
  fs::last_write_time(directory_ / "b.bin", now - std::chrono::hours(1));
  EXPECT_EQ(read(cache, "a.bin"), content);  // now b is the older one
  ASSERT_TRUE(write(cache, "c.bin", content).ok());
  EXPECT_EQ(cache.open("b.bin").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read(cache, "a.bin"), content);
  EXPECT_EQ(read(cache, "c.bin"), content);
  EXPECT_TRUE(fs::exists(directory_ / "foreign.txt"));
  // Replacing a file needs no room of others.
  ASSERT_TRUE(write(cache, "c.bin", std::string(150, 'z')).ok());
  EXPECT_EQ(read(cache, "a.bin"), content);
}

TEST_F(FileCacheTest, WhatIsLargerThanTheBoundIsRefused) {
  const FileCache cache(directory_, 99);
  const Status status = write(cache, "a.bin", std::string(100, 'x'));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("a.bin"), std::string::npos);
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(FileCacheTest, AFullDiskLeavesWhatWasThere) {
  ASSERT_TRUE(write(cache_, "a.bin", "before").ok());
  const int status = status_of_writer(100'000, 50'000, /*dies=*/false);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_EQ(read(cache_, "a.bin"), "before");
  EXPECT_FALSE(fs::exists(cache_.path("a.bin.partial")));
}

TEST_F(FileCacheTest, AWriterThatIsKilledLeavesNoWrongFile) {
  ASSERT_TRUE(write(cache_, "a.bin", "before").ok());
  const int status = status_of_writer(100'000, 50'000, /*dies=*/true);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(fs::file_size(cache_.path("a.bin.partial")), 50'000u);
  EXPECT_EQ(read(cache_, "a.bin"), "before");
  ASSERT_TRUE(write(cache_, "a.bin", "after").ok());
  EXPECT_EQ(read(cache_, "a.bin"), "after");
  EXPECT_FALSE(fs::exists(cache_.path("a.bin.partial")));
}

TEST_F(FileCacheTest, LeftoversGoWhenAnotherFileIsWritten) {
  ASSERT_TRUE(WIFSIGNALED(status_of_writer(100'000, 50'000, /*dies=*/true)));
  ASSERT_TRUE(write(cache_, "b.bin", "content").ok());
  EXPECT_FALSE(fs::exists(cache_.path("a.bin.partial")));
}

TEST_F(FileCacheTest, OneWriterAtATime) {
  ASSERT_TRUE(write(cache_, "a.bin", "before").ok());
  {
    std::ofstream(cache_.path("a.bin.partial")) << "half of ";
    const UniqueFd other(open(cache_.path("a.bin.partial").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(flock(other.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_EQ(write(cache_, "a.bin", "after").code(), StatusCode::kAborted);
    ASSERT_TRUE(write(cache_, "b.bin", "beside").ok());
    EXPECT_EQ(fs::file_size(cache_.path("a.bin.partial")), 8u);
  }
  EXPECT_EQ(read(cache_, "a.bin"), "before");
  EXPECT_TRUE(write(cache_, "a.bin", "after").ok());
  EXPECT_EQ(read(cache_, "a.bin"), "after");
}

TEST_F(FileCacheTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(directory_ / "file") << "x";
  const FileCache cache(directory_ / "file", 1000);
  const Status status = write(cache, "a.bin", "content");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find((directory_ / "file").string()), std::string::npos);
  EXPECT_EQ(cache.open("a.bin").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace crossdock
