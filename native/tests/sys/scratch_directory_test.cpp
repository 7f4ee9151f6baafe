#include "crossdock/sys/scratch_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

namespace crossdock {
namespace {

namespace fs = std::filesystem;

class ScratchDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "scratch-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    parent_ = path;
  }
  void TearDown() override { fs::remove_all(parent_); }

  size_t num_entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(parent_), {}));
  }

  std::string parent_;
};

TEST_F(ScratchDirectoryTest, IsRemovedWithWhatIsInIt) {
  {
    auto made = ScratchDirectory::create(parent_);
    ASSERT_TRUE(made.ok());
    const ScratchDirectory directory = std::move(made).value();
    std::ofstream(directory.path() + "/file") << "bytes";
    EXPECT_EQ(num_entries(), 1u);
  }
  EXPECT_EQ(num_entries(), 0u);
}

TEST_F(ScratchDirectoryTest, OneThatIsHeldStays) {
  auto first = ScratchDirectory::create(parent_);
  auto second = ScratchDirectory::create(parent_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(fs::exists(first.value().path()));
  EXPECT_NE(first.value().path(), second.value().path());
}

TEST_F(ScratchDirectoryTest, WhatAKilledProcessLeftIsRemovedByTheNext) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto made = ScratchDirectory::create(parent_);
    if (!made.ok()) ::_exit(1);
    std::ofstream(made.value().path() + "/segment") << "bytes";
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(1);
  }
  ::close(ready[1]);  // so that the end of a child that failed ends the wait
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(num_entries(), 1u);
  auto next = ScratchDirectory::create(parent_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(num_entries(), 1u);
  EXPECT_TRUE(fs::is_empty(next.value().path()));
  ::close(ready[0]);
}

TEST_F(ScratchDirectoryTest, WhatIsNotOursIsLeftAlone) {
  fs::create_directory(parent_ + "/ucx");
  std::ofstream(parent_ + "/crossdock-file") << "bytes";
  fs::create_directory_symlink(parent_ + "/ucx", parent_ + "/crossdock-link");
  {
    ASSERT_TRUE(ScratchDirectory::create(parent_).ok());
  }
  EXPECT_EQ(num_entries(), 3u);
}

TEST_F(ScratchDirectoryTest, AParentThatIsNotThereIsNamed) {
  const auto made = ScratchDirectory::create(parent_ + "/nothing");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find(parent_ + "/nothing"), std::string::npos);
}

}  // namespace
}  // namespace crossdock
