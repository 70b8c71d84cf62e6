// Reads and writes messages with Kafka's own classes, for tests/against_java.rs.
//
// Input, a line each, bytes in hexadecimal, "-" for none; output, a line for each of them:
//   message NAME VERSION BYTES    the message read and written again
//   default NAME VERSION          the message with nothing set
//   request BYTES                 header and message of a request: key, version, correlation id, client id, all of it
//                                 written again
//   response KEY VERSION BYTES    the same for a response: correlation id, all of it written again
//   uuid BYTES                    an id as text
//   errors                        one line: code,NAME,remedy for each error, apart by spaces
// A failure gives "error" and the exception.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.StringJoiner;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.RequestHeader;

public class Recode {
    private static final String[] PLACES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
    };

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);
        StringBuilder lines = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = answer(line.split(" "));
            } catch (Exception e) {
                answer = "error " + e.toString().replace('\n', ' ');
            }
            lines.append(answer).append('\n');
        }
        out.print(lines);
        out.flush();
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "message": {
                short version = Short.parseShort(words[2]);
                Message message = create(words[1]);
                ByteBuffer bytes = bytes(words[3]);
                message.read(new ByteBufferAccessor(bytes), version);
                if (bytes.hasRemaining()) {
                    return "error " + bytes.remaining() + " bytes left";
                }
                return hex(write(message, version));
            }
            case "default":
                return hex(write(create(words[1]), Short.parseShort(words[2])));
            case "request": {
                ByteBuffer bytes = bytes(words[1]);
                RequestHeader header = RequestHeader.parse(bytes);
                ApiKeys key = header.apiKey();
                ApiMessage body = key.messageType.newRequest();
                body.read(new ByteBufferAccessor(bytes), header.apiVersion());
                RequestHeaderData data = header.data();
                ByteBuffer head = write(data, key.requestHeaderVersion(header.apiVersion()));
                return header.apiKey().id + " " + header.apiVersion() + " " + header.correlationId() + " "
                    + header.clientId() + " " + hex(head, write(body, header.apiVersion()));
            }
            case "response": {
                ApiKeys key = ApiKeys.forId(Integer.parseInt(words[1]));
                short version = Short.parseShort(words[2]);
                ByteBufferAccessor bytes = new ByteBufferAccessor(bytes(words[3]));
                short headerVersion = key.responseHeaderVersion(version);
                ResponseHeaderData header = new ResponseHeaderData(bytes, headerVersion);
                ApiMessage body = key.messageType.newResponse();
                body.read(bytes, version);
                return header.correlationId() + " " + hex(write(header, headerVersion), write(body, version));
            }
            case "uuid": {
                ByteBuffer bytes = bytes(words[1]);
                return new Uuid(bytes.getLong(), bytes.getLong()).toString();
            }
            case "errors":
                return errors();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String errors() {
        StringJoiner rows = new StringJoiner(" ");
        for (Errors error : Errors.values()) {
            String remedy = "other";
            if (error.exception() instanceof InvalidMetadataException) {
                remedy = "metadata";
            } else if (error.exception() instanceof RetriableException) {
                remedy = "retry";
            }
            rows.add(error.code() + "," + error.name() + "," + remedy);
        }
        return rows.toString();
    }

    private static Message create(String name) throws Exception {
        for (String place : PLACES) {
            try {
                return (Message) Class.forName(String.format(place, name)).getDeclaredConstructor().newInstance();
            } catch (ClassNotFoundException e) {
                // Perhaps in the next place.
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static ByteBuffer write(Message message, short version) {
        return MessageUtil.toByteBufferAccessor(message, version).buffer();
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex.equals("-") ? "" : hex));
    }

    private static String hex(ByteBuffer... parts) {
        StringBuilder text = new StringBuilder();
        for (ByteBuffer part : parts) {
            byte[] bytes = new byte[part.remaining()];
            part.get(bytes);
            text.append(HexFormat.of().formatHex(bytes));
        }
        return text.length() == 0 ? "-" : text.toString();
    }
}
