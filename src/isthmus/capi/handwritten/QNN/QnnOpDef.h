/* Operations by name. */
#ifndef QNN_OP_DEF_H
#define QNN_OP_DEF_H

GENERATED(operations)

#endif
