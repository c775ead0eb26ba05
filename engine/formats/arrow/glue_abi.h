/* The C ABI between the engine and its Parquet glue, a shared object of its own that is built
 * against one minor version of pyarrow and loaded when a Parquet source is first opened. Plain C:
 * no C++ type, no exception and no allocation crosses it. A change of any of it is a new version
 * number.
 *
 * Ownership: what an open function returns is the caller's to close. A file must outlive the shards
 * opened on it, a shard its readers. Pointers in structs that are filled by the glue live as long
 * as the shard; those of texts until the next call on the same reader. Threads: a shard may be used
 * from several threads at once, a reader from one at a time. */
#ifndef WIDESTREAM_ENGINE_FORMATS_ARROW_GLUE_ABI_H_
#define WIDESTREAM_ENGINE_FORMATS_ARROW_GLUE_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* C names. NOLINTBEGIN(readability-identifier-naming) */

#define WS_ARROW_GLUE_VERSION 2
#define WS_ARROW_GLUE_SYMBOL "widestream_arrow_glue_v2"

/* Every function returns 0 or a code of widestream::StatusCode, and then fills the error. */
typedef struct ws_arrow_error {
  int32_t code;
  int32_t error_number; /* errno, 0 if none */
  char message[1000];   /* UTF-8 as far as possible, zero-terminated, cut to fit */
} ws_arrow_error;

/* The file, through the engine's own file system. Called from any thread that uses the shard. */
typedef struct ws_arrow_file {
  void* context;
  uint64_t size_bytes;
  /* Reads exactly `size` bytes at `offset`. */
  int32_t (*read_exactly)(void* context, uint64_t offset, uint64_t size, void* out,
                          ws_arrow_error* error);
} ws_arrow_file;

typedef struct ws_arrow_shard ws_arrow_shard;
typedef struct ws_arrow_reader ws_arrow_reader;

/* A leaf of the schema. */
typedef struct ws_arrow_column {
  const char* path; /* dotted */
  const char* type; /* to show */
  uint8_t is_text;  /* byte array annotated as string, JSON or enum */
  uint8_t is_repeated;
  uint8_t is_nested; /* the path has more than one part */
} ws_arrow_column;

typedef struct ws_arrow_row_group {
  uint64_t records;
  uint64_t uncompressed_bytes; /* of the one column */
} ws_arrow_row_group;

/* data == NULL: the value is null (an empty one has a pointer). */
typedef struct ws_arrow_text {
  const char* data;
  uint64_t size;
} ws_arrow_text;

typedef struct ws_arrow_glue {
  uint32_t version;      /* WS_ARROW_GLUE_VERSION */
  uint32_t struct_size;  /* sizeof(ws_arrow_glue) */
  const char* built_for; /* e.g. "25.0" */

  /* The footer was checked by the caller; `footer_bytes` bounds what parsing it may allocate. */
  int32_t (*open_shard)(const ws_arrow_file* file, uint64_t footer_bytes, ws_arrow_shard** shard,
                        ws_arrow_error* error);
  void (*close_shard)(ws_arrow_shard* shard);
  uint32_t (*column_count)(const ws_arrow_shard* shard);
  int32_t (*column)(const ws_arrow_shard* shard, uint32_t column, ws_arrow_column* out,
                    ws_arrow_error* error);
  uint32_t (*row_group_count)(const ws_arrow_shard* shard);
  /* Checks that the column's chunk lies inside the file and has one value a record. */
  int32_t (*row_group)(const ws_arrow_shard* shard, uint32_t row_group, uint32_t column,
                       ws_arrow_row_group* out, ws_arrow_error* error);
  /* Reads one column of one row group, beginning after `skip` records, without decoding the pages
   * that lie before. The memory of the reader is
   * limited by what the footer says of the chunk and by `memory_bytes`. */
  int32_t (*open_reader)(const ws_arrow_shard* shard, uint32_t row_group, uint32_t column,
                         uint64_t skip, uint64_t memory_bytes, ws_arrow_reader** reader,
                         ws_arrow_error* error);
  void (*close_reader)(ws_arrow_reader* reader);
  /* Up to `limit` texts, fewer at the end of a page; none only if limit is 0: less data than the
   * footer promised is an error. */
  int32_t (*read)(ws_arrow_reader* reader, uint64_t limit, const ws_arrow_text** texts,
                  uint64_t* count, ws_arrow_error* error);
  /* How many records can be read before the next page is: they are in memory, decoded. */
  uint64_t (*decoded)(const ws_arrow_reader* reader);
} ws_arrow_glue;

/* The type of the one exported function. */
typedef const ws_arrow_glue* (*ws_arrow_glue_function)(void);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif /* WIDESTREAM_ENGINE_FORMATS_ARROW_GLUE_ABI_H_ */
