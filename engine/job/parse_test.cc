#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "engine/job/spec.h"
#include "engine/job/validate.h"

namespace widestream {
namespace {

constexpr const char* kJob = R"({
  "name": "pretrain", "seed": 17, "run_dir": "/runs/pretrain", "data_roots": ["/data"],
  "tokenizer": {"file": "/t/r50k.tiktoken", "pattern": "gpt2", "append": ["<|endoftext|>"]},
  "sources": [
    {"name": "novels", "paths": ["/data/austen/*.parquet"]},
    {"name": "code", "paths": ["/data/go"], "format": "jsonl", "text": "content", "max_epochs": 2,
     "on_exhausted": "stop", "shuffle": {"mode": "blocks", "records": 10000, "bytes": 8388608}}],
  "mixture": {"unit": "tokens", "stages": [
    {"until": 20000000, "weights": {"novels": 0.6, "code": 0.4}},
    {"weights": {"code": 1}, "ramp": 5000000}]},
  "batch": {"layout": "rows", "sequence_length": 1024, "rows": 64, "microbatch_tokens": 16384},
  "validation_fraction": 0.005, "mesh": {"dp": 2}, "limits": {"threads": 2}})";

// The job with the first occurrence of `from` replaced.
std::string With(const std::string& from, const std::string& to) {
  std::string text = kJob;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void ExpectError(const std::string& json, const std::vector<std::string>& parts) {
  const Result<JobSpec> job = ParseJob(json);
  ASSERT_FALSE(job.ok()) << "no error, expected one with: " << parts[0];
  EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(job.status().message().find(part), std::string::npos)
        << "message: " << job.status().message() << "\nlacks: " << part;
  }
}

TEST(ParseJob, ReadsEveryMember) {
  const Result<JobSpec> job = ParseJob(kJob);
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->name, "pretrain");
  EXPECT_EQ(job->seed, 17U);
  ASSERT_TRUE(job->tokenizer.has_value());
  EXPECT_EQ(job->tokenizer->append,  // NOLINT(bugprone-unchecked-optional-access): asserted above
            std::vector<std::string>{"<|endoftext|>"});
  ASSERT_EQ(job->sources.size(), 2U);
  EXPECT_EQ(job->sources[0].text, "text");
  EXPECT_EQ(job->sources[0].max_epochs, std::nullopt);
  EXPECT_EQ(job->sources[0].shuffle.records, 1000U);
  EXPECT_EQ(job->sources[1].max_epochs, 2U);
  EXPECT_EQ(job->sources[1].on_exhausted, ExhaustedPolicy::kStop);
  EXPECT_EQ(job->sources[1].shuffle.bytes, 8388608U);
  ASSERT_EQ(job->mixture.stages.size(), 2U);
  EXPECT_EQ(job->mixture.stages[0].until, 20000000U);
  EXPECT_EQ(job->mixture.stages[1].until, std::nullopt);
  EXPECT_EQ(job->mixture.stages[1].weights, (std::vector<double>{0, 1}));
  EXPECT_EQ(job->mixture.stages[1].ramp, 5000000U);
  EXPECT_EQ(job->batch.rows, 64U);
  EXPECT_EQ(job->batch.microbatch_tokens, 16384U);
  EXPECT_EQ(job->mesh.dp, 2U);
  EXPECT_EQ(job->limits.threads, 2U);
}

TEST(ParseJob, DefaultsToEqualWeights) {
  const Result<JobSpec> job = ParseJob(
      R"({"data_roots": ["/d"], "tokenizer": {"file": "/t"}, "sources": [
          {"name": "a", "paths": ["/d/a"]}, {"name": "b", "paths": ["/d/b"]}],
          "batch": {"sequence_length": 8, "rows": 2}})");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  ASSERT_EQ(job->mixture.stages.size(), 1U);
  EXPECT_EQ(job->mixture.stages[0].weights, (std::vector<double>{1, 1}));
}

TEST(ParseJob, NamesTheNearestKey) {
  ExpectError(With("\"seed\"", "\"sede\""), {"sede: unknown key", "did you mean \"seed\""});
  ExpectError(With("\"max_epochs\"", "\"maxEpochs\""), {"sources[1].maxEpochs", "\"max_epochs\""});
  ExpectError(With("\"records\"", "\"record\""), {"sources[1].shuffle.record", "\"records\""});
  ExpectError(With("\"dp\"", "\"zzzzzzzz\""), {"mesh.zzzzzzzz", "valid: dp, cp, tp, pp, vpp, ep"});
  ExpectError(With("{\"code\": 1}", "{\"cod\": 1}"),
              {"mixture.stages[1].weights", "unknown source \"cod\"", "did you mean \"code\""});
  ExpectError(With("\"stop\"", "\"stopp\""), {"sources[1].on_exhausted", "did you mean \"stop\""});
  ExpectError(With("\"rows\", \"seq", "\"row\", \"seq"), {"batch.layout", "\"rows\""});
}

TEST(ParseJob, RefusesWrongTypesAndRanges) {
  ExpectError("", {"job: no valid JSON"});
  ExpectError("[]", {"job: found an array", "expected an object"});
  ExpectError("{\"seed\": 1, \"seed\": 2}", {"\"seed\" occurs twice"});
  ExpectError(std::string(1000, '['), {"nested deeper"});
  ExpectError(With("17", "-1"), {"seed: found -1", "whole number"});
  ExpectError(With("17", "1.5"), {"seed: found 1.5"});
  ExpectError(With("17", "18446744073709551616"), {"seed"});
  ExpectError(With("17", "\"x\""), {"seed: found \"x\" (a string)"});
  ExpectError(With("64", "null"), {"batch.rows: found null"});
  ExpectError(With("\"sequence_length\": 1024, ", ""), {"batch.sequence_length: missing"});
  ExpectError(With("0.005", "1"), {"validation_fraction", "below 1"});
  ExpectError(With("0.005", "1.5"), {"validation_fraction"});
  ExpectError(With("0.4", "-0.4"), {"mixture.stages[0].weights.code: found -0.4"});
  ExpectError(With("0.4", "1e999"), {"job"});
  ExpectError(With("0.4", "\"NaN\""), {"weights.code"});
  ExpectError(With("/data/go", "data/go"), {"sources[1].paths[0]", "absolute"});
  ExpectError(With("/data/go", "s3://b/go"), {"sources[1].paths[0]", "local files only"});
  ExpectError(With("[\"/data\"]", "[\"data\"]"), {"data_roots[0]", "absolute"});
  ExpectError(With("[\"/data\"]", "[]"), {"data_roots: is empty"});
  ExpectError(With("/runs/pretrain", "runs"), {"run_dir", "absolute"});
  ExpectError(With("/data/go", "/data/\\u0000go"), {"sources[1].paths[0]", "NUL"});
  ExpectError(With("\"dp\": 2", "\"dp\": 0"), {"mesh.dp: found 0"});
  ExpectError(With("\"dp\": 2", "\"dp\": 65536, \"tp\": 65536, \"pp\": 65536, \"cp\": 65536"),
              {"mesh: dp * cp * tp * pp"});
}

TEST(ParseJob, RefusesContradictions) {
  ExpectError(With("\"rows\": 64", "\"tokens\": 65536"), {"batch.rows: is 0 or missing"});
  ExpectError(With("\"rows\": 64", "\"rows\": 64, \"tokens\": 65536"),
              {"batch.tokens", "\"rows\""});
  ExpectError(With("\"rows\", \"seq", "\"thd\", \"seq"), {"batch.tokens: is 0 or missing"});
  ExpectError(With("\"rows\", \"seq", "\"thd\", \"tokens\": 4096, \"seq"), {"batch.rows"});
  ExpectError(With("\"rows\": 64", "\"rows\": 64, \"max_piece_tokens\": 5"),
              {"batch.max_piece_tokens"});
  ExpectError(With("16384", "1000"), {"batch.microbatch_tokens: found 1000", "1024"});
  ExpectError(With("\"name\": \"code\"", "\"name\": \"novels\""),
              {"sources[1].name", "\"novels\" again", "sources[0]"});
  ExpectError(With("\"name\": \"code\"", "\"name\": \"a b\""), {"sources[1].name"});
  ExpectError(With("\"blocks\"", "\"full\""), {"sources[1].shuffle.mode", "random access"});
  ExpectError(With("{\"code\": 1}", "{\"code\": 0}"), {"mixture.stages[1].weights", "all are 0"});
  ExpectError(With("\"until\": 20000000, ", ""), {"mixture.stages[0].until: missing"});
  ExpectError(With("\"ramp\": 5000000", "\"until\": 20000000"),
              {"mixture.stages[1].until", "more than 20000000"});
  ExpectError(With("\"ramp\": 5000000", "\"ramp\": 2, \"until\": 20000001"),
              {"mixture.stages[1].ramp: found 2", "longer than its stage of 1"});
  ExpectError(With("\"until\": 20000000", "\"until\": 20000000, \"ramp\": 1"),
              {"mixture.stages[0].ramp", "first stage"});
  ExpectError(With("\"threads\": 2", "\"host_memory_bytes\": 16777216, \"threads\": 2"),
              {"errors.record_bytes", "host_memory"});
  ExpectError(With("\"rows\": 64", "\"rows\": 4000000"), {"batch: a step of"});
  ExpectError(With("\"dp\": 2", "\"cp\": 3"), {"mesh.cp: found 3", "no multiple"});
  ExpectError(With("\"tokenizer\"", "\"name2\""), {"name2: unknown key"});
}

TEST(ParseJob, BoundsTheWeightsBeforeAllocatingThem) {
  std::string sources;
  for (int i = 0; i < 2000; ++i) {
    sources += (i == 0 ? "" : ",") + std::string("{\"name\":\"s") + std::to_string(i) +
               "\",\"paths\":[\"/d\"]}";
  }
  std::string stages;
  for (int i = 0; i < 900; ++i) stages += (i == 0 ? "" : ",") + std::string("{\"weights\":{}}");
  ExpectError("{\"sources\":[" + sources + "],\"mixture\":{\"stages\":[" + stages + "]}}",
              {"mixture.stages", "1000000"});
}

TEST(ParseJob, ThdTakesTokens) {
  const Result<JobSpec> job = ParseJob(
      With(R"("rows", "sequence_length": 1024, "rows": 64)",
           R"("thd", "sequence_length": 1024, "tokens": 65536, "max_piece_tokens": 2048)"));
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->batch.max_piece_tokens, 2048U);
}

TEST(ParseJob, ReadsTheMeshAndTheLayoutKeys) {
  const Result<MeshSpec> mesh = ParseMesh(
      R"({"dp": 4, "cp": 2, "tp": 2, "pp": 2, "vpp": 2, "ep": 8, "dp_replicate": 2,
          "order": ["dp", "pp", "tp", "cp"], "sequence_parallel": true, "cp_split": "ulysses",
          "every_stage": ["position_ids"], "broadcast_at": ["tp", "pp"]})");
  ASSERT_TRUE(mesh.ok()) << mesh.status().ToString();
  EXPECT_EQ(mesh->ep, 8U);
  EXPECT_EQ(mesh->dp_replicate, 2U);
  EXPECT_EQ(mesh->order[0], MeshAxis::kDp);
  EXPECT_TRUE(mesh->sequence_parallel);
  EXPECT_EQ(mesh->cp_split, ContextSplit::kUlysses);
  EXPECT_EQ(mesh->broadcast_at, (std::vector<MeshAxis>{MeshAxis::kTp, MeshAxis::kPp}));
  for (const char* wrong :
       {R"({"order": ["dp", "xp", "tp", "cp"]})", R"({"broadcast_at": "tp"})", R"({"ep": 2})",
        R"({"broadcast_at": ["dp"]})", R"({"cp_split": "zigzag"})", R"({"every_stage": ["x"]})"}) {
    EXPECT_EQ(ParseMesh(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(ParseJob, PaddingThatCannotBeIsRefusedWithWhatFits) {
  const std::string batch =
      R"("layout": "rows", "sequence_length": 1024, "rows": 64, "microbatch_tokens": 16384)";
  const auto thd = [&](const std::string& rest) {
    return With(batch, R"("layout": "thd", "sequence_length": 100, "tokens": 1000)" + rest);
  };
  EXPECT_TRUE(ParseJob(thd(R"(, "pad_documents_to": 8, "pad_microbatch_to": 16)")).ok());
  ExpectError(thd(R"(, "fixed_shapes": true)"), {"batch.fixed_shapes", "microbatch_tokens"});
  ExpectError(thd(R"(, "fixed_shapes": true, "pad_microbatch_to": 16, "microbatch_tokens": 120)"),
              {"batch.microbatch_tokens: found 120", "a multiple of 16", "write 112"});
  ExpectError(thd(R"(, "pad_documents_to": 64, "microbatch_tokens": 127)"),
              {"batch.microbatch_tokens: found 127", "takes 128 tokens with padding"});
  ExpectError(thd(R"(, "pad_documents_to": 1048575, "pad_microbatch_to": 1048576)"),
              {"batch.pad_microbatch_to", "expected at most"});
  for (const char* key : {"pad_documents_to", "pad_microbatch_to", "microbatch_pieces"}) {
    ExpectError(With(batch, batch + ", \"" + key + "\": 8"), {key, "remove it"});
  }
  ExpectError(With("\"dp\": 2", R"("cp": 2, "cp_split": "zigzag_document")"),
              {"mesh.cp_split", "write \"zigzag_row\""});
  ExpectError(With("\"dp\": 2", R"("tp": 3, "sequence_parallel": true)"), {"mesh.tp: found 3"});
}

TEST(ToJson, IsCanonical) {
  const Result<JobSpec> job = ParseJob(kJob);
  ASSERT_TRUE(job.ok());
  const std::string json = ToJson(*job);
  const Result<JobSpec> again = ParseJob(json);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(ToJson(*again), json);
  EXPECT_EQ(json.find(' '), std::string::npos);
  EXPECT_EQ(json.rfind("{\"balance\":\"lpt\",\"balance_group_size\":0,\"batch\":", 0), 0U) << json;
  EXPECT_NE(json.find("\"code\":0.4"), std::string::npos) << json;
}

TEST(ToJson, SurvivesInvalidUtf8) {
  JobSpec job;
  job.name = "\xff";
  EXPECT_NE(ToJson(job).find("\"name\":"), std::string::npos);
  EXPECT_FALSE(ValidateJob(job).ok());
}

RC_GTEST_PROP(ToJson, RoundTripsWeights, (const std::vector<double>& raw)) {
  JobSpec job = *ParseJob(kJob);
  job.mixture.stages.resize(1);
  StageSpec& stage = job.mixture.stages[0];
  for (const double value : raw) {
    const double weight = value < 0 ? -value : value;
    if (!(weight <= 1e15)) continue;
    SourceSpec source = job.sources[0];
    source.name = "s" + std::to_string(job.sources.size());
    job.sources.push_back(source);
    stage.weights.push_back(weight == 0 ? 0.0 : weight);
  }
  const std::string json = ToJson(job);
  const Result<JobSpec> again = ParseJob(json);
  RC_ASSERT(again.ok());
  RC_ASSERT(again->mixture.stages[0].weights == stage.weights);
  RC_ASSERT(ToJson(*again) == json);
}

RC_GTEST_PROP(ParseJob, NeverCrashesOnDamagedText, (std::vector<std::uint8_t> bytes)) {
  std::string text = kJob;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    text[(std::size_t{bytes[i]} * 257 + i) % text.size()] = static_cast<char>(bytes[i + 1]);
  }
  const Result<JobSpec> job = ParseJob(text);
  if (job.ok()) {
    const Result<JobSpec> again = ParseJob(ToJson(*job));
    RC_ASSERT(again.ok());
    RC_ASSERT(ToJson(*again) == ToJson(*job));
  } else {
    RC_ASSERT(job.status().code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace widestream
