// SPDX-License-Identifier: Apache-2.0
// The table of mounts, and the disks below.
#include "block_device.h"
#include "machine.h"
#include "mounts.h"

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

constexpr const char *kMounts =
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
    "not a mount\n"
    "30 27 259:1 /part /mnt/my\\040data rw,nosuid shared:4 master:2 - xfs /dev/nvme0n1p1 rw\n"
    "31 27 0:25 / /mnt rw - tmpfs none ro,size=4k\n"
    "32 27 0:26 / /mnt rw - btrfs /dev/sda2 rw\n";

TEST(Mounts, ALineIsReadWithItsOptionalFieldsAndEscapes)
{
    const std::vector<Mount> mounts = parse_mounts(kMounts);
    ASSERT_EQ(mounts.size(), 4u);
    EXPECT_EQ(mounts[1].id, 30u);
    EXPECT_EQ(mounts[1].major, 259u);
    EXPECT_EQ(mounts[1].minor, 1u);
    EXPECT_EQ(mounts[1].root, "/part");
    EXPECT_EQ(mounts[1].point, "/mnt/my data");
    EXPECT_EQ(mounts[1].type, "xfs");
    EXPECT_EQ(mounts[1].source, "/dev/nvme0n1p1");
    EXPECT_TRUE(has_option(mounts[1].options, "nosuid"));
    EXPECT_FALSE(has_option(mounts[1].options, "suid"));
}

TEST(Mounts, AMountIsFoundByNumberElseByTheDeepestAndLastPoint)
{
    const std::vector<Mount> mounts = parse_mounts(kMounts);
    EXPECT_EQ(find_mount(mounts, 31, "/elsewhere")->type, "tmpfs");
    EXPECT_EQ(find_mount(mounts, 0, "/mnt/x")->type, "btrfs");
    EXPECT_EQ(find_mount(mounts, 0, "/mnt/my data/x")->type, "xfs");
    EXPECT_EQ(find_mount(mounts, 0, "/mnt2")->type, "ext4");
    EXPECT_EQ(find_mount({}, 0, "/"), nullptr);
}

TEST(BlockDevice, APartitionIsDescribedByItsDisk)
{
    const Machine machine;
    const std::string disk = "/sys/devices/pci/nvme/nvme0n1";
    machine.file(disk + "/device/model", "Fast Disk 9000   \n");
    machine.file(disk + "/queue/rotational", "0\n");
    machine.file(disk + "/queue/scheduler", "[none] mq-deadline\n");
    machine.file(disk + "/queue/logical_block_size", "4096\n");
    machine.file(disk + "/size", "2048\n");
    machine.file(disk + "/nvme0n1p1/partition", "1\n");
    machine.link("/sys/dev/block/259:1", "../../devices/pci/nvme/nvme0n1/nvme0n1p1");
    const auto device = read_block_device(machine.root(), parse_mounts(kMounts)[1]);
    ASSERT_TRUE(device);
    EXPECT_EQ(device->name, "nvme0n1");
    EXPECT_EQ(device->partition, "nvme0n1p1");
    EXPECT_EQ(device->model, "Fast Disk 9000");
    EXPECT_EQ(device->scheduler, "none");
    EXPECT_FALSE(device->rotating);
    EXPECT_EQ(device->sector_bytes, 4096u);
    EXPECT_EQ(device->bytes, 1u << 20);
}

TEST(BlockDevice, WhatHasNoDeviceNumberIsFoundByItsSource)
{
    const Machine machine;
    machine.file("/sys/devices/disk/sda/queue/rotational", "1\n");
    machine.file("/sys/devices/disk/sda/sda2/partition", "2\n");
    machine.link("/sys/class/block/sda2", "../../devices/disk/sda/sda2");
    const std::vector<Mount> mounts = parse_mounts(kMounts);
    const auto device = read_block_device(machine.root(), mounts[3]);
    ASSERT_TRUE(device);
    EXPECT_EQ(device->name, "sda");
    EXPECT_TRUE(device->rotating);
    EXPECT_FALSE(read_block_device(machine.root(), mounts[2]));
}

TEST(BlockDevice, AMappedDeviceNamesItsParts)
{
    const Machine machine;
    machine.file("/sys/devices/virtual/block/dm-0/slaves/sdb/x", "");
    machine.file("/sys/devices/virtual/block/dm-0/slaves/sda/x", "");
    machine.link("/sys/class/block/dm-0", "../../devices/virtual/block/dm-0");
    machine.file("/dev/dm-0", "");
    machine.link("/dev/mapper/data", "../dm-0");
    Mount mount;
    mount.source = "/dev/mapper/data";
    const auto device = read_block_device(machine.root(), mount);
    ASSERT_TRUE(device);
    EXPECT_EQ(device->name, "dm-0");
    EXPECT_EQ(device->made_of, (std::vector<std::string>{"sda", "sdb"}));
}

}  // namespace
}  // namespace stepwell::cli
