/* Answers requests to a SavedModel with TensorFlow's C API alone: no Python in the process.

     saved_model_runner FOLDER

   loads FOLDER under the tag "serve" with the loader that TensorFlow Serving uses, resolves the
   signatures' names in the MetaGraphDef as TensorFlow Serving does, and answers the requests on
   stdin, one after another, on stdout, until stdin ends. A bad request is answered with an error.

   Numbers are little-endian. A string is its length (uint32), then its bytes. A message is its
   length (uint64), then its bytes:

     first     code, error message | code, a MetaGraphDef (protobuf) of the signatures alone
     request   signature name, number of tensors (uint32), tensors: all of the signature's inputs
     reply     code, error message | code, number of tensors (uint32), tensors: all its outputs
     code      uint32, a TF_Code; the error message follows where it isn't 0
     tensor    name, TF_DataType (uint32), rank (uint32), dimensions (int64 each), number of bytes
               (uint64), data: row-major values, or strings one after another
*/
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

enum { MAX_RANK = 8, MAX_TENSORS = 64, MAX_NAME = 1024, MAX_MESSAGE = 1 << 30 };

/* Numbers of protobuf fields, from tensorflow/core/protobuf/meta_graph.proto. */
enum { META_GRAPH_SIGNATURES = 5, SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2, INFO_NAME = 1 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 }; /* of any map */

/* -- Reading and writing bytes ------------------------------------------------------------ */

/* What is left to read. A read past the end gives zeros and sets `failed`. */
typedef struct {
  const uint8_t *at, *end;
  bool failed;
} Reader;

static Reader take(Reader *from, uint64_t size) {
  if (from->failed || size > (uint64_t)(from->end - from->at)) {
    from->failed = true;
    return (Reader){from->end, from->end, true};
  }
  Reader part = {from->at, from->at + size, false};
  from->at += size;
  return part;
}

static uint64_t take_number(Reader *from, int bytes) {
  Reader part = take(from, bytes);
  uint64_t value = 0;
  for (int i = 0; part.at < part.end; i++) value |= (uint64_t)*part.at++ << (8 * i);
  return value;
}

static Reader take_string(Reader *from) { return take(from, take_number(from, 4)); }

static size_t left(Reader reader) { return reader.end - reader.at; }

static bool same(Reader a, Reader b) {
  return left(a) == left(b) && memcmp(a.at, b.at, left(a)) == 0;
}

typedef struct {
  uint8_t *data;
  size_t size, capacity;
} Writer;

static void put(Writer *to, const void *data, size_t size) {
  if (to->size + size > to->capacity) {
    to->capacity = 2 * (to->size + size);
    to->data = realloc(to->data, to->capacity);
    if (to->data == NULL) abort();
  }
  if (size) memcpy(to->data + to->size, data, size);
  to->size += size;
}

static void put_number(Writer *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) put(to, &(uint8_t){value >> (8 * i)}, 1);
}

static void put_string(Writer *to, const void *data, size_t size) {
  put_number(to, size, 4);
  put(to, data, size);
}

/* -- The little of protobuf's wire format that a MetaGraphDef needs ----------------------- */

static uint64_t take_varint(Reader *from) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = take_number(from, 1);
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  from->failed = true;
  return 0;
}

/* Takes the message's next field; `value` stays empty unless it has a length of its own. */
static bool next_field(Reader *message, uint64_t *number, Reader *value) {
  if (message->failed || message->at == message->end) return false;
  uint64_t tag = take_varint(message);
  *number = tag >> 3;
  *value = (Reader){message->at, message->at, false};
  switch (tag & 7) {
    case 0: take_varint(message); break;
    case 1: take(message, 8); break;
    case 2: *value = take(message, take_varint(message)); break;
    case 5: take(message, 4); break;
    default: message->failed = true; /* groups: no proto3 message has them */
  }
  return !message->failed;
}

/* The field's last value, which is the one that counts; empty if there is none. */
static Reader field(Reader message, uint64_t wanted) {
  Reader found = {message.at, message.at, false}, value;
  for (uint64_t number; next_field(&message, &number, &value);)
    if (number == wanted) found = value;
  return found;
}

/* Takes the next entry of the map that is the message's field `map`. */
static bool next_entry(Reader *message, uint64_t map, Reader *key, Reader *value) {
  Reader entry;
  for (uint64_t number; next_field(message, &number, &entry);) {
    if (number != map) continue;
    *key = field(entry, ENTRY_KEY);
    *value = field(entry, ENTRY_VALUE);
    return true;
  }
  return false;
}

static bool look_up(Reader message, uint64_t map, Reader wanted, Reader *value) {
  for (Reader key; next_entry(&message, map, &key, value);)
    if (same(key, wanted)) return true;
  return false;
}

/* -- Tensors ------------------------------------------------------------------------------ */

static void fail(TF_Status *status, TF_Code code, const char *format, ...) {
  char message[2 * MAX_NAME];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  TF_SetStatus(status, code, message);
}

/* A name for printf's "%.*s". */
#define TEXT(reader) (int)(left(reader) < MAX_NAME ? left(reader) : MAX_NAME), (char *)(reader).at

static void delete_input(TF_Tensor *tensor) {
  TF_TString *strings = TF_TensorData(tensor);
  if (TF_TensorType(tensor) == TF_STRING)
    for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) TF_StringDealloc(&strings[i]);
  TF_DeleteTensor(tensor);
}

static TF_Tensor *take_tensor(Reader *from, Reader name, TF_Status *status) {
  TF_DataType dtype = take_number(from, 4);
  uint64_t rank = take_number(from, 4), elements = 1;
  int64_t dims[MAX_RANK];
  if (rank > MAX_RANK) from->failed = true;
  for (uint64_t i = 0; i < rank && !from->failed; i++) {
    dims[i] = take_number(from, 8);
    if (dims[i] < 0 || dims[i] > MAX_MESSAGE) from->failed = true;
    elements *= dims[i]; /* At most 2^60: both factors are at most 2^30. */
    if (elements > MAX_MESSAGE) from->failed = true;
  }
  Reader data = take(from, take_number(from, 8));
  size_t width = dtype == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(dtype);
  bool fits = dtype == TF_STRING ? 4 * elements <= left(data) : width * elements == left(data);
  if (from->failed || width == 0 || !fits) {
    fail(status, TF_INVALID_ARGUMENT, "tensor parsing error: %.*s", TEXT(name));
    return NULL;
  }
  TF_Tensor *tensor = TF_AllocateTensor(dtype, dims, rank, width * elements);
  if (dtype != TF_STRING) {
    if (left(data)) memcpy(TF_TensorData(tensor), data.at, left(data));
    return tensor;
  }
  TF_TString *strings = TF_TensorData(tensor);
  for (uint64_t i = 0; i < elements; i++) {
    Reader string = take_string(&data);
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], (const char *)string.at, left(string));
  }
  if (!data.failed && !left(data)) return tensor;
  delete_input(tensor);
  fail(status, TF_INVALID_ARGUMENT, "tensor parsing error: %.*s", TEXT(name));
  return NULL;
}

static void put_tensor(Writer *to, Reader name, const TF_Tensor *tensor) {
  put_string(to, name.at, left(name));
  put_number(to, TF_TensorType(tensor), 4);
  put_number(to, TF_NumDims(tensor), 4);
  for (int i = 0; i < TF_NumDims(tensor); i++) put_number(to, TF_Dim(tensor, i), 8);
  if (TF_TensorType(tensor) != TF_STRING) {
    put_number(to, TF_TensorByteSize(tensor), 8);
    put(to, TF_TensorData(tensor), TF_TensorByteSize(tensor));
    return;
  }
  const TF_TString *strings = TF_TensorData(tensor);
  uint64_t size = 0;
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++)
    size += 4 + TF_StringGetSize(&strings[i]);
  put_number(to, size, 8);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++)
    put_string(to, TF_StringGetDataPointer(&strings[i]), TF_StringGetSize(&strings[i]));
}

/* -- Requests ----------------------------------------------------------------------------- */

typedef struct {
  TF_Graph *graph;
  TF_Session *session;
  TF_Buffer *meta_graph;
} Model;

static Reader meta_graph(const Model *model) {
  const uint8_t *data = model->meta_graph->data;
  return (Reader){data, data + model->meta_graph->length, false};
}

/* One run of the session: parallel arrays of endpoints, their names and tensors. */
typedef struct {
  int num_inputs, num_outputs;
  Reader input_names[MAX_TENSORS], output_names[MAX_TENSORS];
  TF_Output inputs[MAX_TENSORS], outputs[MAX_TENSORS];
  TF_Tensor *input_values[MAX_TENSORS], *output_values[MAX_TENSORS];
} Run;

/* The endpoint that a TensorInfo's name, "operation:index", stands for. */
static TF_Output endpoint(const Model *model, Reader info, TF_Status *status) {
  char name[MAX_NAME];
  Reader text = field(info, INFO_NAME);
  snprintf(name, sizeof name, "%.*s", TEXT(text));
  char *colon = strrchr(name, ':');
  if (colon) *colon = '\0';
  TF_Output output = {TF_GraphOperationByName(model->graph, name), colon ? atoi(colon + 1) : 0};
  if (!output.oper || output.index < 0 || output.index >= TF_OperationNumOutputs(output.oper))
    fail(status, TF_INTERNAL, "the graph has no tensor \"%.*s\"", TEXT(text));
  return output;
}

static void take_inputs(const Model *model, Reader signature, Reader *request, Run *run,
                        TF_Status *status) {
  uint64_t count = take_number(request, 4);
  if (count > MAX_TENSORS) {
    fail(status, TF_INVALID_ARGUMENT, "more than %d inputs", MAX_TENSORS);
    return;
  }
  while (run->num_inputs < (int)count) {
    Reader name = take_string(request), info, *names = run->input_names;
    if (!look_up(signature, SIGNATURE_INPUTS, name, &info)) {
      fail(status, TF_INVALID_ARGUMENT, "input \"%.*s\" isn't in the signature", TEXT(name));
      return;
    }
    int i = run->num_inputs;
    names[i] = name;
    run->inputs[i] = endpoint(model, info, status);
    if (TF_GetCode(status) != TF_OK) return;
    run->input_values[i] = take_tensor(request, name, status);
    if (TF_GetCode(status) != TF_OK) return;
    run->num_inputs++;
  }
  for (Reader key, info; next_entry(&signature, SIGNATURE_INPUTS, &key, &info);) {
    int i = 0;
    while (i < run->num_inputs && !same(run->input_names[i], key)) i++;
    if (i < run->num_inputs) continue;
    fail(status, TF_INVALID_ARGUMENT, "input \"%.*s\" is missing", TEXT(key));
    return;
  }
}

static void find_outputs(const Model *model, Reader signature, Run *run, TF_Status *status) {
  for (Reader key, info; next_entry(&signature, SIGNATURE_OUTPUTS, &key, &info);) {
    if (run->num_outputs == MAX_TENSORS) {
      fail(status, TF_INTERNAL, "more than %d outputs", MAX_TENSORS);
      return;
    }
    run->output_names[run->num_outputs] = key;
    run->outputs[run->num_outputs++] = endpoint(model, info, status);
    if (TF_GetCode(status) != TF_OK) return;
  }
}

static void answer(const Model *model, Reader request, Writer *reply, TF_Status *status) {
  Reader name = take_string(&request), signature;
  if (!look_up(meta_graph(model), META_GRAPH_SIGNATURES, name, &signature)) {
    fail(status, TF_FAILED_PRECONDITION, "signature \"%.*s\" not found", TEXT(name));
    return;
  }
  Run run = {0};
  take_inputs(model, signature, &request, &run, status);
  if (TF_GetCode(status) == TF_OK) find_outputs(model, signature, &run, status);
  if (TF_GetCode(status) == TF_OK)
    TF_SessionRun(model->session, NULL, run.inputs, run.input_values, run.num_inputs, run.outputs,
                  run.output_values, run.num_outputs, NULL, 0, NULL, status);
  if (TF_GetCode(status) == TF_OK) {
    put_number(reply, TF_OK, 4);
    put_number(reply, run.num_outputs, 4);
    for (int i = 0; i < run.num_outputs; i++)
      put_tensor(reply, run.output_names[i], run.output_values[i]);
  }
  for (int i = 0; i < run.num_outputs; i++)
    if (run.output_values[i]) TF_DeleteTensor(run.output_values[i]);
  for (int i = 0; i < run.num_inputs; i++) delete_input(run.input_values[i]);
}

static void send_reply(FILE *stream, Writer *reply, TF_Status *status) {
  if (TF_GetCode(status) != TF_OK) {
    const char *message = TF_Message(status);
    reply->size = 0;
    put_number(reply, TF_GetCode(status), 4);
    put_string(reply, message, strlen(message));
  }
  Writer length = {0};
  put_number(&length, reply->size, 8);
  fwrite(length.data, 1, length.size, stream);
  fwrite(reply->data, 1, reply->size, stream);
  fflush(stream);
  free(length.data);
}

/* The first message: the fields of the MetaGraphDef that hold its signatures, as they stand. */
static void put_signatures(const Model *model, Writer *reply) {
  Reader message = meta_graph(model), value;
  put_number(reply, TF_OK, 4);
  const uint8_t *start = message.at;
  for (uint64_t number; next_field(&message, &number, &value); start = message.at)
    if (number == META_GRAPH_SIGNATURES) put(reply, start, message.at - start);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  /* Whatever else prints to stdout goes to stderr. */
  FILE *output = fdopen(dup(STDOUT_FILENO), "wb");
  dup2(STDERR_FILENO, STDOUT_FILENO);

  TF_Status *status = TF_NewStatus();
  TF_SessionOptions *options = TF_NewSessionOptions();
  Model model = {TF_NewGraph(), NULL, TF_NewBuffer()};
  const char *tags[] = {"serve"};
  Writer reply = {0};
  model.session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, model.graph,
                                               model.meta_graph, status);
  if (TF_GetCode(status) == TF_OK) put_signatures(&model, &reply);
  send_reply(output, &reply, status);
  if (TF_GetCode(status) != TF_OK) return 1;

  uint8_t length[8], *request = NULL;
  while (fread(length, 1, sizeof length, stdin) == sizeof length) {
    uint64_t size = take_number(&(Reader){length, length + sizeof length, false}, 8);
    if (size > MAX_MESSAGE || (request = realloc(request, size + 1)) == NULL) return 3;
    if (fread(request, 1, size, stdin) != size) return 3;
    reply.size = 0;
    TF_SetStatus(status, TF_OK, "");
    answer(&model, (Reader){request, request + size, false}, &reply, status);
    send_reply(output, &reply, status);
  }
  TF_DeleteSession(model.session, status);
  TF_DeleteGraph(model.graph);
  TF_DeleteBuffer(model.meta_graph);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  free(request);
  free(reply.data);
  return 0;
}
