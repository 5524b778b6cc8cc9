// Tables with rows on disk, for Python.
#pragma once

#include <unistd.h>

#include "codec.hpp"
#include "disk_file.hpp"
#include "table_bindings.hpp"

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
                          const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>>& numbers, const std::string& codec, const nb::bytes& packed_text,
                          const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>>& packed_numbers) {
        const auto core = t.get();
        if (!core->tiered() || core->disk()) fail(ErrorCode::config, "table '%s' has no use for a file", core->shared().name);
        const Table& s = core->shared();
        const std::uint64_t buffers = s.n_columns + s.n_ragged;
        const auto message_of = [&](const nb::bytes& of, const auto& its_numbers) {
          BlockMessage message{bytes_of(of), {}};
          for (const auto& [what, column, at, factor] : its_numbers) {
            const std::uint64_t columns = what < BlockMessage::start ? 1 : what < BlockMessage::offset ? s.n_ragged : what <= BlockMessage::length && !codec.empty() ? buffers : 0;
            if (at + sizeof(std::int64_t) > message.text.size() || column >= columns) fail(ErrorCode::config, "table '%s': no such number in the message of a block", s.name);
            message.numbers.push_back({what, column, at, factor});
          }
          return message;
        };
        std::optional<Packing> packing;
        if (!codec.empty()) {
          const Codec* found = codec_of(codec.c_str());
          if (found == nullptr) {
            close(fd);
            fail(ErrorCode::config, "table '%s' is compressed on disk by %s, whose library is not on this machine", s.name, codec.c_str());
          }
          packing.emplace(found, message_of(packed_text, packed_numbers));
          if (packing->buffers.size() != buffers) fail(ErrorCode::config, "table '%s': not as many buffers as columns have", s.name);
        }
        core->use_disk(std::make_shared<DiskFile>(fd, std::move(path), bytes_of(head), message_of(text, numbers), std::move(packing), s.block_bytes, s.n_blocks, core->process().segments().writable()));
      }, "fd"_a, "path"_a, "head"_a, "message"_a, "numbers"_a, "codec"_a, "packed"_a, "packed_numbers"_a)
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
        FIELD(blocks_promoted); FIELD(bytes_written); FIELD(write_ns); FIELD(failures); FIELD(losses); FIELD(error);
#undef FIELD
        return d;
      });
}

}  // namespace
}  // namespace conduit
