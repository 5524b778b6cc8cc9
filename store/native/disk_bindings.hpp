// The part of bindings.cpp that is about tables with rows on disk; included there, and nowhere else.
#pragma once

#include "disk_file.hpp"

namespace conduit {
namespace {

std::vector<std::byte> bytes_of(const nb::bytes& bytes) {
  const auto* at = static_cast<const std::byte*>(bytes.data());
  return {at, at + bytes.size()};
}

void bind_disk(nb::class_<PyTable>& table) {
  table
      // Takes over the descriptor. Before anything else.
      .def("use_disk", [](PyTable& t, int fd, std::string path, const nb::bytes& head, const nb::bytes& text,
                          const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>>& numbers) {
        const auto core = t.get();
        if (!core->tiered() || core->disk()) fail(ErrorCode::config, "table '%s' has no use for a file", core->shared().name);
        const Table& s = core->shared();
        BlockMessage message{bytes_of(text), {}};
        for (const auto& [what, column, at, factor] : numbers) {
          if (at + sizeof(std::int64_t) > message.text.size() || (what >= BlockMessage::start && column >= s.n_ragged)) fail(ErrorCode::config, "table '%s': no such number in the message of a block", s.name);
          message.numbers.push_back({what, column, at, factor});
        }
        core->use_disk(std::make_shared<DiskFile>(fd, std::move(path), bytes_of(head), std::move(message), s.block_bytes, s.n_blocks, core->process().segments().writable()));
      }, "fd"_a, "path"_a, "head"_a, "message"_a, "numbers"_a)
      // 1: moved some, 0: nothing to move, -1: the disk has failed
      .def("move_blocks", [](PyTable& t, double timeout) {
        const TableCore::Moves moves = t.unlocked([&](TableCore& c) { return c.move_blocks(static_cast<std::uint64_t>(timeout * 1e9)); });
        return moves == TableCore::Moves::moved ? 1 : moves == TableCore::Moves::idle ? 0 : -1;
      }, "timeout"_a)
      .def("wake_movers", [](PyTable& t) { t.get()->wake_movers(); })
      .def("tier", [](PyTable& t) {
        const TierInfo i = t.unlocked([](TableCore& c) { return c.tier_info(); });
        nb::dict d;
#define FIELD(name) d[#name] = i.name
        FIELD(frames); FIELD(frames_free); FIELD(blocks_on_disk); FIELD(rows_from_disk); FIELD(blocks_written); FIELD(blocks_dropped);
        FIELD(blocks_promoted); FIELD(bytes_written); FIELD(write_ns); FIELD(failures); FIELD(error);
#undef FIELD
        return d;
      });
}

}  // namespace
}  // namespace conduit
